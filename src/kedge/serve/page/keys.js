// Keys that work everywhere on the page, and the page that lists all keys.

import { confirm, label, redo, undo } from "./actions.js";
import { notSaved } from "./connection.js";
import { topClasses } from "./details.js";
import { byId, el, icon } from "./dom.js";
import { closeDrawer } from "./drawer.js";
import { clearSelection, focusImage, targets } from "./moves.js";
import { choose, labelled, NONE, state } from "./state.js";
import { viewerImage } from "./viewer.js";

const KEYS = [
  ["Arrows", "move from image to image; Page up, Page down, Home, End"],
  ["Shift + arrows", "select a range; also Shift + click"],
  ["x", "select one more; also Ctrl + click, or a long touch"],
  ["1 … 9", "give the label shown below the grid, to the image or to all selected"],
  ["Enter", "choose among all classes; also a click"],
  ["0 or n", "none of these"],
  ["y", "right as it is"],
  ["Backspace", "forget what you said of it"],
  ["Space", "large view, with the nearest images"],
  ["z", "undo; also Ctrl + Z. Shift + Z: redo"],
  ["/", "search file names"],
  ["Esc", "close, clear the selection, take filters away"],
];

/** Give the n-th most probable class of the image in question to it, or to all selected. */
async function giveTop(place) {
  const image = viewerImage() ?? state.focus;
  const images = viewerImage() === null ? targets() : [image];
  const top = await topClasses(image);
  if (top[place]) label(images, top[place].id);
  else if (top.length === 0) notSaved(); // the server did not say which classes they are
}

function labelKey(event) {
  const images = viewerImage() === null ? targets() : [viewerImage()];
  if (!labelled() || images.length === 0) return false;
  if (/^[1-9]$/.test(event.key)) giveTop(Number(event.key) - 1);
  else if (event.key === "0" || event.key === "n") label(images, NONE);
  else if (event.key === "y") confirm(images);
  else if (event.key === "Backspace" || event.key === "Delete") label(images, null);
  else return false;
  return true;
}

function escape() {
  if (closeDrawer() || clearSelection()) return;
  if (state.only || state.search || state.filter !== null) {
    choose({ only: null, search: "", filter: null });
    focusImage(state.focus);
  }
}

function pressed(event) {
  if (event.defaultPrevented) return;
  const field = event.target.matches("input:not([type=range], [type=radio], [type=checkbox]), textarea, select");
  const command = event.ctrlKey || event.metaKey;
  if (event.key === "Escape" && event.target.id === "search") {
    choose({ search: "" });
    focusImage(state.focus);
  } else if (field || event.altKey) return;
  else if (event.key.toLowerCase() === "z") (event.shiftKey ? redo : undo)();
  else if (command) return;
  else if (event.key === "?" && !document.querySelector("dialog[open]")) openHelp();
  else if (event.key === "/" && !document.querySelector("dialog[open]")) byId("search").focus();
  else if (event.key === "Escape" && !document.querySelector("dialog[open], :popover-open")) escape();
  else if (event.target.closest(".tile, .viewer, body > .hints, .hints") || event.target === document.body) {
    if (!labelKey(event)) return;
  } else return;
  event.preventDefault();
}

function openHelp() {
  const dialog = el("dialog", { class: "dialog help", "aria-labelledby": "help-title", "data-testid": "help" });
  const rows = KEYS.map(([key, what]) => el("tr", {}, el("th", { scope: "row" }, el("kbd", {}, key)), el("td", {}, what)));
  dialog.append(
    el("div", { class: "viewer-head" }, el("h2", { id: "help-title" }, "Correct a few, and the rest follow"),
      el("button", { class: "icon-button", type: "button", "aria-label": "Close", onclick: () => dialog.close() }, icon("close"))),
    el("p", {}, "Each label you give makes kedge solve the whole set again. Images whose label changed because of it get a ring for a moment. “Worth a look” has those first from which most can be learned. The order stays as it is while you work; “Next most useful” makes it anew."),
    el("p", {}, "“Expected right” is what kedge thinks of the labels that you did not give. A number “measured on folder names” is there only if the folders have the names of classes; it is never used for labels."),
    el("table", { class: "keys" }, el("tbody", {}, ...rows)),
    el("p", { class: "quiet" }, `All you say is kept in ${state.set?.work ?? "the work folder"} at once. Closing the page loses nothing.`),
  );
  dialog.addEventListener("close", () => {
    dialog.remove();
    byId("help").focus();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
}

export function startKeys() {
  document.addEventListener("keydown", pressed);
  byId("help").addEventListener("click", openHelp);
}
