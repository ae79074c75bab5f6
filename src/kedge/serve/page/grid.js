// The grid: only the rows that are seen, and a margin, are in the page.
//
// It is an ARIA grid: images are cells in rows, arrows move in two dimensions, and aria-rowcount and aria-rowindex tell a
// screen reader where it is although most rows are not there. One cell is in the tab order (roving tabindex); the row
// of that cell stays in the page even if it is scrolled out of sight, so the focus is never lost.

import { byId, count, el, kept, later } from "./dom.js";
import { layOut, rowAt, rowOf } from "./rows.js";
import { className, on, state } from "./state.js";
import { fill, fillFocus, loadPicture, makeTile, watchPictures } from "./tile.js";

const MARGIN = 400; // px above and below what is seen
const FAST = 1200; // px in one frame: too fast to look at, so thumbnails wait
const SETTLED = 90; // ms

const box = byId("grid-box");
const grid = byId("grid");
const sticky = byId("sticky");
const inPage = new Map(); // number of a row → its element
let plan = layOut(0, null, 1000, 150);
let size = Number(kept.get("size")) || (matchMedia("(max-width: 700px)").matches ? 104 : 120);
let lastTop = 0;
let frame = 0;
let boxWidth = 0;
let boxHeight = 0;

export const rows = () => plan.rows;
export const tileOf = (image) => grid.querySelector(`[data-image="${image}"]`);
export const tiles = () => grid.querySelectorAll(".tile");
export const rowsInView = () => Math.max(1, Math.floor(boxHeight / plan.height));
export const tileSize = () => size;

export function setSize(wanted) {
  size = wanted;
  kept.set("size", String(wanted));
  relay();
}

/** Place all images anew and keep the place of the focused (or first seen) image on the screen. */
function relay() {
  const held = hold();
  plan = layOut(state.list.length, state.groups, boxWidth, size);
  grid.style.height = `${plan.total}px`;
  grid.style.setProperty("--tile", `${plan.width}px`);
  grid.setAttribute("aria-rowcount", plan.rows.length);
  grid.setAttribute("aria-colcount", plan.columns);
  const focused = grid.contains(document.activeElement);
  for (const row of inPage.values()) row.remove();
  inPage.clear();
  held();
  render();
  if (focused) tileOf(state.focus)?.focus({ preventScroll: true });
}

/** Remember where an image is on the screen; the function that is returned scrolls it there again. */
function hold() {
  const first = plan.rows[rowAt(plan.rows, box.scrollTop)];
  const image = drawn[first?.start];
  if (image === undefined || box.scrollTop === 0) return () => {};
  const offset = first.top - box.scrollTop;
  return () => {
    const place = state.position[image] ?? -1;
    if (place >= 0) box.scrollTop = plan.rows[rowOf(plan.rows, place)].top - offset;
  };
}

let drawn = []; // the list that is laid out

function drawList() {
  const same = drawn.length === state.list.length && drawn.every((image, place) => image === state.list[place]);
  if (!same || state.groups) {
    plan = layOut(0, null, boxWidth, size);
    box.scrollTop = 0;
  }
  drawn = state.list;
  relay();
}

function render() {
  frame = 0;
  if (plan.rows.length === 0) return;
  const top = box.scrollTop;
  const fast = Math.abs(top - lastTop) > FAST;
  lastTop = top;
  const first = rowAt(plan.rows, top - MARGIN);
  const last = rowAt(plan.rows, top + boxHeight + MARGIN);
  const held = state.focus >= 0 && state.position[state.focus] >= 0 ? rowOf(plan.rows, state.position[state.focus]) : -1;
  for (const [index, row] of inPage) {
    if ((index < first || index > last) && index !== held) {
      row.remove();
      inPage.delete(index);
    }
  }
  for (let index = first; index <= last; index += 1) addRow(index);
  if (held >= 0) addRow(held);
  if (fast) loadSoon();
  else load();
  stick(top);
}

function addRow(index) {
  if (inPage.has(index)) return;
  const { top, start, end, group } = plan.rows[index];
  const row = el("div", { class: group ? "row heading" : "row", role: "row", "aria-rowindex": index + 1 });
  row.style.transform = `translateY(${top}px)`;
  if (group) row.append(...heading(group));
  for (let place = start; place < end; place += 1) {
    const tile = makeTile(state.list[place]);
    tile.setAttribute("aria-colindex", place - start + 1);
    fill(tile);
    fillFocus(tile);
    row.append(tile);
  }
  let next = null; // the page has the rows in their order, as a screen reader reads them
  let nearest = Infinity;
  for (const [other, element] of inPage) if (other > index && other < nearest) [nearest, next] = [other, element];
  grid.insertBefore(row, next);
  inPage.set(index, row);
}

function heading(group) {
  const words = el("div", { class: "heading-words", role: "gridcell", "aria-colspan": plan.columns });
  const images = state.list.slice(group.start, group.start + group.count);
  words.append(
    el("h2", {}, className(group.id)),
    el("span", { class: "quiet" }, count(group.count, "image")),
    el("button", { class: "link", type: "button", tabindex: "-1", onclick: () => selectGroup(images) }, "select all"),
  );
  return [words];
}

let selectGroup = () => {};

/** What "select all" at the heading of a group does. */
export function onSelectGroup(call) {
  selectGroup = call;
}

let stuck = null;

/** In the view "by label", the heading of the group at the top stays in sight. */
function stick(top) {
  const group = state.groups?.findLast(({ start }) => plan.rows[rowOf(plan.rows, start)].top - 44 <= top);
  sticky.hidden = !group || top === 0;
  if (sticky.hidden || stuck === group) return;
  stuck = group;
  sticky.replaceChildren(...heading(group));
}

function load() {
  for (const row of inPage.values()) {
    if (row.loaded) continue;
    row.loaded = state.labels.phase === "labelled"; // while images are encoded, some have no thumbnail yet
    for (const cell of row.children) if (cell.dataset.image) loadPicture(cell);
  }
}
const loadSoon = later(load, SETTLED);

/** Write labels into the tiles that are there. */
export function refill() {
  for (const tile of tiles()) fill(tile);
  load();
}

export function scrollTo(image) {
  const row = plan.rows[rowOf(plan.rows, state.position[image])];
  const room = state.groups ? 48 : 4;
  if (row.top - room < box.scrollTop) box.scrollTop = row.top - room;
  else if (row.top + row.height + 8 > box.scrollTop + boxHeight) box.scrollTop = row.top + row.height + 8 - boxHeight;
  render();
}

function measure() {
  const style = getComputedStyle(box);
  const before = boxWidth;
  boxWidth = box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  boxHeight = box.clientHeight;
  return boxWidth !== before;
}

export function startGrid() {
  measure();
  watchPictures(grid);
  box.addEventListener("scroll", () => {
    frame ||= requestAnimationFrame(render);
  }, { passive: true });
  new ResizeObserver(() => {
    if (measure()) relay();
    else render();
  }).observe(box);
  on("list", drawList);
  on("labels accept pending", refill);
  on("focus selection", () => {
    for (const tile of tiles()) fillFocus(tile);
  });
}
