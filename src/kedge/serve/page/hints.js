// A line below the grid: which class each key gives to the focused image. It works with the mouse too.

import { confirm, label } from "./actions.js";
import { topClasses } from "./details.js";
import { byId, count, el, later } from "./dom.js";
import { clearSelection, targets } from "./moves.js";
import { className, labelled, NONE, on, state } from "./state.js";

const place = byId("hints");

function hint(key, text, call) {
  return el("button", { class: "hint", type: "button", tabindex: "-1", title: text, "data-key": key, onclick: call }, el("kbd", {}, key), el("span", {}, text));
}

async function draw() {
  const image = state.focus;
  place.hidden = !labelled() || image < 0;
  if (place.hidden) return;
  const top = await topClasses(image);
  if (image !== state.focus) return;
  const parts = [];
  if (state.selected.size) {
    parts.push(el("span", { class: "hint-selected" }, `${count(state.selected.size, "image")} selected`), hint("Esc", "clear", clearSelection));
  }
  const classes = top.map(({ id }, n) => hint(String(n + 1), className(id), () => label(targets(), id)));
  parts.push(el("span", { class: "hint-classes" }, ...classes)); // as many as fit into one line
  parts.push(hint("0", "none of these", () => label(targets(), NONE)), hint("y", "right as it is", () => confirm(targets())));
  place.replaceChildren(...parts);
}

export function startHints() {
  on("focus list labels selection", later(draw, 90));
}
