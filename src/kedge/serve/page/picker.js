// Choose a label at an image: its nine most probable classes, a search over all, none of these, right as it is, forget.
//
// The list has the focus, so that keys work at once. A letter (other than n and y, which are keys) or "/" begins a search.

import { addClass, confirm, label } from "./actions.js";
import { smallPicture } from "./api.js";
import { topClasses } from "./details.js";
import { count, el, fileName, icon, percent } from "./dom.js";
import { place } from "./popover.js";
import { className, NONE, shown, state } from "./state.js";

const MATCHES = 60;
let open = null;

export const pickerIsOpen = () => open !== null;

/** images: those that get the label; at: the element to open beside; enlarge: opens the large view. */
export function openPicker(images, at, { enlarge = null } = {}) {
  open?.close();
  const image = images.includes(state.focus) ? state.focus : images[0];
  let top = guess(image);
  const list = el("ul", { class: "picker-list", "aria-label": "Most probable classes" });
  const search = el("input", { type: "search", class: "picker-search", "data-testid": "picker-search", placeholder: `Search all ${state.names.size} classes`, "aria-label": "Search all classes", autocomplete: "off", spellcheck: "false" });
  const dialog = el("dialog", { class: "picker", "data-testid": "picker", "aria-label": `Label for ${count(images.length, "image")}` });
  const give = (id) => finish(() => label(images, id));
  const finish = (call) => {
    dialog.close();
    call();
  };
  const option = (id, key, share) => {
    const now = images.length === 1 && shown(image).label === id;
    const button = el("button", { class: "picker-option", type: "button", "data-testid": "picker-option", "data-class": id, onclick: () => give(id) },
      el("kbd", {}, key), el("span", { class: "picker-name" }, className(id)), now ? el("span", { class: "tag" }, "now") : null,
      el("span", { class: "picker-share" }, share === null ? "" : percent(share)));
    if (share !== null) button.style.setProperty("--share", share);
    return el("li", {}, button);
  };
  const draw = () => {
    const wanted = search.value.trim().toLowerCase();
    const had = list.contains(document.activeElement) ? document.activeElement.dataset.class : null;
    if (!wanted) list.replaceChildren(...top.map(({ id, probability }, n) => option(id, String(n + 1), probability)));
    else {
      const found = matches(wanted);
      list.replaceChildren(...found.slice(0, MATCHES).map((id) => option(id, "", null)));
      if (found.length === 0) list.append(el("li", { class: "quiet picker-nothing" }, "No class has this name."));
      if (state.set.edit && !exact(wanted)) list.append(el("li", {}, newClass(search.value.trim())));
    }
    if (had !== null) (list.querySelector(`[data-class="${had}"]`) ?? list.querySelector("button"))?.focus();
  };
  const newClass = (name) => el("button", { class: "picker-option", type: "button", "data-testid": "picker-add", onclick: () => finish(async () => {
    const answer = await addClass(name, null);
    const made = answer?.classes.findLast((one) => one.name === name);
    if (made) label(images, made.id);
  }) }, icon("plus"), el("span", { class: "picker-name" }, `add the class “${name}”`));
  const action = (testid, key, name, text, call) => el("button", { class: "picker-option", type: "button", "data-testid": testid, onclick: () => finish(call) },
    el("kbd", {}, key), icon(name), el("span", { class: "picker-name" }, text));
  const said = images.some((one) => shown(one).known);
  const actions = el("div", { class: "picker-actions" },
    action("none", "0", "none", "none of these", () => label(images, NONE)),
    action("confirm", "y", "check", "right as it is", () => confirm(images)),
    said ? action("forget", "⌫", "forget", "forget what you said", () => label(images, null)) : null,
    enlarge && images.length === 1 ? action("enlarge", "", "large", "large view", () => enlarge(image)) : null);
  const title = images.length === 1 ? fileName(state.set.images[image]) : `${count(images.length, "image")} selected`;
  dialog.append(
    el("div", { class: "picker-head" }, el("img", { alt: "", src: smallPicture(image, state.set.list) }), el("p", { title }, title),
      el("button", { class: "icon-button small", type: "button", "aria-label": "Close", onclick: () => dialog.close() }, icon("close"))),
    search, list, actions);
  search.addEventListener("input", draw);
  dialog.addEventListener("keydown", (event) => keys(event, { dialog, search, list }));
  dialog.addEventListener("click", (event) => clickedBeside(event, dialog));
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (open === dialog) open = null;
  });
  draw();
  document.body.append(dialog);
  dialog.showModal();
  place(dialog, at.getBoundingClientRect());
  list.querySelector("button")?.focus();
  open = dialog;
  topClasses(image).then((found) => {
    if (open !== dialog || found.length === 0) return;
    top = found;
    draw();
    place(dialog, at.getBoundingClientRect());
  });
}

/** What the labels say already, until the nine most probable classes are here. */
function guess(image) {
  const { label: now, probability, zeroShot } = shown(image);
  const ids = new Set([now, state.labels.columns.runner_up[image], zeroShot].filter((id) => id >= 0 && state.names.has(id)));
  return [...ids].map((id) => ({ id, probability: id === now ? probability : null }));
}

/** Classes whose name has this text: first those that begin with it. */
function matches(wanted) {
  const found = [...state.names.values()].filter((one) => one.name.toLowerCase().includes(wanted));
  const rank = (one) => (one.name.toLowerCase().startsWith(wanted) ? 0 : 1);
  return found.sort((one, two) => rank(one) - rank(two) || one.name.localeCompare(two.name)).map((one) => one.id);
}

const exact = (wanted) => [...state.names.values()].some((one) => one.name.toLowerCase() === wanted);

/** A click beside the picker closes it; on another image it goes on there, so that image after image is one click each. */
function clickedBeside(event, dialog) {
  const { left, right, top, bottom } = dialog.getBoundingClientRect();
  const { clientX: x, clientY: y } = event;
  if (event.target !== dialog || (x >= left && x <= right && y >= top && y <= bottom)) return;
  dialog.close();
  if (matchMedia("(max-width: 600px)").matches) return; // there it is a sheet over a shade
  const { shiftKey, ctrlKey, metaKey } = event;
  const again = new MouseEvent("click", { bubbles: true, cancelable: true, clientX: x, clientY: y, shiftKey, ctrlKey, metaKey });
  document.elementFromPoint(x, y)?.closest(".tile")?.dispatchEvent(again);
}

function keys(event, { dialog, search, list }) {
  event.stopPropagation();
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target === search;
  const press = (testid) => dialog.querySelector(`[data-testid="${testid}"]`)?.click();
  const buttons = [...dialog.querySelectorAll(".picker-option")];
  const at = buttons.indexOf(document.activeElement);
  if (event.key === "Escape") dialog.close(); // also if there is text, which the browser would clear first
  else if (event.key === "ArrowDown") buttons[Math.min(buttons.length - 1, at + 1)]?.focus();
  else if (event.key === "ArrowUp") (at <= 0 ? search : buttons[at - 1]).focus();
  else if (typing && event.key === "Enter") list.querySelector("button")?.click();
  else if (typing) return;
  else if (/^[1-9]$/.test(event.key)) list.querySelectorAll("button")[Number(event.key) - 1]?.click();
  else if (event.key === "0" || event.key === "n") press("none");
  else if (event.key === "y") press("confirm");
  else if (event.key === "Backspace" || event.key === "Delete") press("forget");
  else if (event.key === "/") search.focus();
  else if (/^\p{L}$/u.test(event.key)) {
    search.focus(); // the letter goes in as usual
    return;
  } else return;
  event.preventDefault();
}
