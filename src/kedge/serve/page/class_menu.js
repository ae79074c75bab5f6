// What can be done with a class: show its images, rename, change its prompt, drop it.

import { dropClass } from "./actions.js";
import { openClassDialog } from "./class_dialog.js";
import { el } from "./dom.js";
import { closeDrawer } from "./drawer.js";
import { popover } from "./popover.js";
import { choose, labelled, state } from "./state.js";

let menu = null;

export function openClassMenu(id, button) {
  menu ??= popover("class-menu", "Class");
  const one = state.names.get(id);
  const item = (text, testid, call, off = false) =>
    el("button", { class: "menu-item", type: "button", "data-testid": testid, disabled: off, onclick: () => {
      menu.hidePopover();
      call();
    } }, text);
  const items = [item("Show its images", "class-show", () => {
    choose({ filter: id, only: null });
    closeDrawer();
  }, one.count === 0)];
  if (state.set.edit) {
    const off = !labelled();
    items.push(
      item("Rename …", "class-rename", () => openClassDialog({ id, field: "name" }), off),
      item("Change the prompt …", "class-prompt", () => openClassDialog({ id, field: "prompt" }), off),
      item("Drop", "class-drop", () => dropClass(id), off),
    );
  }
  menu.replaceChildren(el("p", { class: "menu-title" }, one.name), el("div", { class: "menu-list" }, ...items));
  menu.openAt(button);
}
