// Focus and selection in the grid, by keys, mouse and touch.

import { byId } from "./dom.js";
import { onSelectGroup, rows, rowsInView, scrollTo, tileOf } from "./grid.js";
import { rowOf, vertical } from "./rows.js";
import { state, tell } from "./state.js";

const grid = byId("grid");
const LONG = 450; // ms: a long touch selects

/** Move the focus to an image of the list; extend: select all from the anchor to it. */
export function focusImage(image, { extend = false, take = true } = {}) {
  if (!(state.position[image] >= 0)) return;
  if (extend) selectRange(image);
  else state.anchor = image;
  state.focus = image;
  scrollTo(image);
  tell("focus");
  if (take) tileOf(image)?.focus({ preventScroll: true });
}

/** The image `steps` places further in the list, or null at an end. */
export function further(steps, image = state.focus) {
  const place = state.position[image] + steps;
  return place >= 0 && place < state.list.length ? state.list[place] : null;
}

/** The images that a label goes to: those selected, or the focused one. */
export function targets() {
  if (state.selected.size) return [...state.selected];
  return state.focus >= 0 ? [state.focus] : [];
}

function selectRange(image) {
  if (!(state.position[state.anchor] >= 0)) state.anchor = state.focus;
  const [from, to] = [state.position[state.anchor], state.position[image]].sort((one, two) => one - two);
  state.selected = new Set(state.list.slice(from, to + 1));
  tell("selection");
}

export function toggle(image) {
  if (state.selected.has(image)) state.selected.delete(image);
  else state.selected.add(image);
  state.anchor = image;
  tell("selection");
}

export function clearSelection() {
  if (state.selected.size === 0) return false;
  state.selected.clear();
  tell("selection");
  return true;
}

/** The place that an arrow key leads to, or null. */
function goal(event) {
  const place = state.position[state.focus];
  const all = event.ctrlKey || event.metaKey;
  const row = rows()[rowOf(rows(), place)];
  const last = state.list.length - 1;
  switch (event.key) {
    case "ArrowLeft": return Math.max(0, place - 1);
    case "ArrowRight": return Math.min(last, place + 1);
    case "ArrowUp": return vertical(rows(), place, -1);
    case "ArrowDown": return vertical(rows(), place, 1);
    case "PageUp": return vertical(rows(), place, -rowsInView());
    case "PageDown": return vertical(rows(), place, rowsInView());
    case "Home": return all ? 0 : row.start;
    case "End": return all ? last : row.end - 1;
    default: return null;
  }
}

function selectAll(images) {
  state.selected = new Set(images);
  tell("selection");
}

/** Listen to the grid. open: what a click does; enlarge: what the small button in a tile does. */
export function startMoves({ open, enlarge }) {
  onSelectGroup((images) => {
    selectAll(images);
    focusImage(images[0]);
  });
  grid.addEventListener("keydown", (event) => {
    if (!event.target.matches(".tile")) return;
    const place = event.altKey ? null : goal(event);
    if (place !== null) focusImage(state.list[place], { extend: event.shiftKey });
    else if ((event.ctrlKey || event.metaKey) && event.key === "a") selectAll(state.list);
    else if (event.key === "x" && !event.ctrlKey && !event.metaKey) toggle(state.focus);
    else if (event.key === "Enter") open(state.focus);
    else if (event.key === " ") enlarge(state.focus);
    else return;
    event.preventDefault();
  });
  grid.addEventListener("focusin", (event) => {
    const image = event.target.closest(".tile")?.dataset.image;
    if (image === undefined || Number(image) === state.focus) return;
    state.focus = Number(image);
    tell("focus");
  });
  let touched = 0; // timer of a long touch
  let long = false;
  grid.addEventListener("pointerdown", (event) => {
    const tile = event.target.closest(".tile");
    long = false;
    if (event.pointerType === "mouse" || !tile) return;
    touched = setTimeout(() => {
      long = true;
      toggle(Number(tile.dataset.image));
    }, LONG);
  });
  for (const kind of ["pointerup", "pointercancel", "pointerleave"]) grid.addEventListener(kind, () => clearTimeout(touched));
  grid.addEventListener("contextmenu", (event) => {
    if (long) event.preventDefault();
  });
  grid.addEventListener("mousedown", (event) => {
    if (event.shiftKey) event.preventDefault(); // no text is selected
  });
  grid.addEventListener("click", (event) => {
    const tile = event.target.closest(".tile");
    if (!tile || long) return;
    const image = Number(tile.dataset.image);
    if (event.target.closest(".enlarge")) {
      focusImage(image);
      enlarge(image);
    } else if (event.shiftKey) focusImage(image, { extend: true });
    else if (event.ctrlKey || event.metaKey) {
      toggle(image);
      const anchor = state.anchor;
      focusImage(image);
      state.anchor = anchor;
    } else if (state.selected.size && !state.selected.has(image)) {
      clearSelection();
      focusImage(image);
      open(image);
    } else {
      focusImage(image);
      open(image);
    }
  });
}
