// One image in the grid: its thumbnail, label, probability, what zero-shot said, and marks.

import { smallPicture } from "./api.js";
import { el, fileName, icon, percent } from "./dom.js";
import { className, NOT_YET, state, shown } from "./state.js";
import { accepted } from "./views.js";

const FLASH = 1500; // ms

// A tile is a copy of this: a scroll makes hundreds of them in a second.
const PATTERN = el(
  "div",
  { class: "tile", role: "gridcell", tabindex: "-1", "data-testid": "tile" },
  el("div", { class: "picture" }, el("img", { alt: "", decoding: "async", draggable: "false" }), el("span", { class: "mark" }),
    el("button", { class: "enlarge", type: "button", tabindex: "-1", "aria-label": "Large view", title: "Large view (Space)" }, icon("large"))),
  el("div", { class: "line" }, el("span", { class: "label" }), el("span", { class: "number" })),
  el("div", { class: "bar" }, el("span")),
  el("div", { class: "was" }),
);

/** A cell of the grid; fill() writes into it. */
export function makeTile(image) {
  const tile = PATTERN.cloneNode(true);
  tile.dataset.image = image;
  return tile;
}

/** Listen to the thumbnails in an element; load and error do not bubble. */
export function watchPictures(element) {
  element.addEventListener("load", ({ target }) => target.closest(".tile")?.classList.add("loaded"), true);
  element.addEventListener("error", ({ target }) => target.closest(".tile")?.classList.add("broken"), true);
}

/** Ask for the thumbnail, if the image is encoded already: the encoder needs the processor more than we do. */
export function loadPicture(tile) {
  const image = Number(tile.dataset.image);
  const img = tile.firstChild.firstChild;
  if (img.hasAttribute("src") || state.labels.columns.zero_shot[image] < 0) return;
  img.src = smallPicture(image, state.set.list);
  if (img.complete && img.naturalWidth) tile.classList.add("loaded");
}

/** Write what is known now. */
export function fill(tile) {
  const image = Number(tile.dataset.image);
  const columns = state.labels.columns;
  const { label, probability, known, zeroShot, waiting } = shown(image);
  const [, line, bar, was] = tile.children;
  const empty = label === NOT_YET;
  const changed = !empty && zeroShot >= 0 && label !== zeroShot;
  const name = empty ? "" : className(label);
  const figure = empty ? "" : known ? "yours" : label < 0 ? percent(columns.none[image]) : percent(probability);
  put(line.firstChild, name);
  put(line.lastChild, figure);
  const strange = state.view === "none" && label >= 0 && !known;
  put(was, strange ? `none: ${percent(columns.none[image])}` : changed ? `zero-shot: ${className(zeroShot)}` : "");
  bar.firstChild.style.transform = `scaleX(${empty ? 0 : label < 0 && !known ? columns.none[image] : probability})`;
  const classes = tile.classList;
  classes.toggle("empty-tile", empty);
  classes.toggle("known", known);
  classes.toggle("nobody", label === -1);
  classes.toggle("changed", changed && !strange);
  classes.toggle("waiting", waiting);
  classes.toggle("dimmed", state.dim && !empty && !known && !accepted(columns, image, state.accept));
  mark(tile, known ? (label === -1 ? "none" : "check") : "");
  const path = state.set.images[image];
  tile.title = path;
  tile.setAttribute("aria-label", describe(path, name, figure, changed ? className(zeroShot) : "", known));
  flash(tile, image);
}

/** Focus and selection, which change far more often than labels. */
export function fillFocus(tile) {
  const image = Number(tile.dataset.image);
  tile.tabIndex = image === state.focus ? 0 : -1;
  const selected = state.selected.has(image);
  tile.setAttribute("aria-selected", String(selected));
  tile.classList.toggle("selected", selected);
}

function describe(path, name, figure, was, known) {
  if (!name) return `${fileName(path)}: not yet encoded`;
  const sure = known ? "by you" : figure;
  return `${name}, ${sure}${was ? `, zero-shot said ${was}` : ""}. ${fileName(path)}`;
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function mark(tile, name) {
  const place = tile.firstChild.children[1];
  if ((place.dataset.icon ?? "") === name) return;
  place.dataset.icon = name;
  place.replaceChildren(...(name ? [icon(name)] : []));
}

/** A ring that fades. A tile that is scrolled into view joins in where the others are. */
function flash(tile, image) {
  const passed = performance.now() - state.flash.since;
  if (passed >= FLASH || !state.flash.images.has(image) || Number(tile.dataset.flash) === state.flash.since) return;
  tile.dataset.flash = state.flash.since;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const ring = el("span", { class: "ring" });
  tile.append(ring);
  const frames = still
    ? [{ opacity: 1 }, { opacity: 1 }]
    : [{ opacity: 1, transform: "scale(1.03)" }, { opacity: 1, transform: "none", offset: 0.15 }, { opacity: 1, offset: 0.4 }, { opacity: 0 }];
  const play = ring.animate(frames, { duration: FLASH, easing: "ease-out" });
  play.currentTime = passed;
  play.onfinish = () => ring.remove();
}
