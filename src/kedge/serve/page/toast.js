// Short messages at the bottom, which a screen reader speaks. One at a time; it goes by itself.

import { byId, el, icon } from "./dom.js";
import { choose } from "./state.js";

const STAYS = 6000; // ms; longer while the mouse or the focus is on it
const place = byId("toasts");
let timer = 0;

/** Say something. show: images to offer; undo: a function to offer; bad: it went wrong. */
export function toast(text, { show = null, undo = null, bad = false } = {}) {
  const message = el("div", { class: bad ? "toast bad" : "toast" }, el("p", {}, text));
  if (show) message.append(button("Show them", () => choose({ only: { title: "changed just now", images: show }, filter: null, search: "" })));
  if (undo) message.append(button("Undo", undo));
  message.append(el("button", { class: "icon-button", type: "button", "aria-label": "Close", onclick: close }, icon("close")));
  if (place.parentNode !== host()) host().append(place);
  place.replaceChildren(message);
  clearTimeout(timer);
  timer = setTimeout(closeIfUnused, bad ? 2 * STAYS : STAYS);
}

// Beside an open dialog nothing can be clicked: the message goes into it, and out again before it closes.
const host = () => [...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body;
document.addEventListener("close", ({ target }) => {
  if (target.contains(place)) document.body.append(place);
}, true);

function button(text, call) {
  return el("button", { class: "link", type: "button", onclick: () => {
    close();
    call();
  } }, text);
}

function closeIfUnused() {
  if (place.matches(":hover, :focus-within")) timer = setTimeout(closeIfUnused, 1000);
  else close();
}

function close() {
  place.replaceChildren();
}
