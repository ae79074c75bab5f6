// The large view: an image, what speaks for which class, and its neighbours: why it was called so.

import { confirm, label } from "./actions.js";
import { largePicture, smallPicture } from "./api.js";
import { details } from "./details.js";
import { el, fileName, icon, number, percent } from "./dom.js";
import { focusImage, further } from "./moves.js";
import { openPicker } from "./picker.js";
import { className, labelled, NONE, on, shown, state } from "./state.js";

let view = null; // {dialog, image, parts}

export const viewerImage = () => (view ? view.image : null);

export function openViewer(image) {
  if (view) return show(image);
  const dialog = el("dialog", { class: "viewer", "data-testid": "large-view", "aria-label": "Large view" });
  const parts = {
    img: el("img", { alt: "", onerror: () => parts.stage.classList.add("broken") }), path: el("h2", {}), place: el("span", { class: "quiet" }), label: el("div", { class: "viewer-label" }),
    bars: el("ol", { class: "bars" }), near: el("ul", { class: "near" }),
    back: step("left", "Previous image (←)", -1), next: step("right", "Next image (→)", 1),
  };
  const other = el("button", { class: "button", type: "button", onclick: () => openPicker([view.image], other) }, icon("search"), "another class");
  const buttons = el("div", { class: "viewer-buttons" },
    el("button", { class: "button", type: "button", onclick: () => confirm([view.image]) }, icon("check"), "right as it is"),
    el("button", { class: "button", type: "button", onclick: () => label([view.image], NONE) }, icon("none"), "none of these"), other,
    (parts.forget = el("button", { class: "button", type: "button", onclick: () => label([view.image], null) }, icon("forget"), "forget")));
  parts.buttons = buttons;
  dialog.append(
    (parts.stage = el("div", { class: "stage" }, parts.back, parts.img, el("p", { class: "quiet" }, "This image is no longer there, or cannot be read."), parts.next)),
    el("div", { class: "about" },
      el("div", { class: "viewer-head" }, el("div", {}, parts.path, parts.place), el("button", { class: "icon-button", type: "button", "aria-label": "Close", onclick: () => dialog.close() }, icon("close"))),
      parts.label, buttons,
      el("h3", {}, "Probability", el("span", { class: "legend" }, el("i", { class: "key-now" }), "now", el("i", { class: "key-zero" }), "zero-shot")), parts.bars,
      el("h3", {}, "Nearest images, and their labels"), parts.near));
  dialog.addEventListener("keydown", keys);
  dialog.addEventListener("close", () => {
    dialog.remove();
    const last = view.image;
    view = null;
    focusImage(state.position[last] >= 0 ? last : state.focus);
  });
  document.body.append(dialog);
  view = { dialog, image, parts };
  dialog.showModal();
  show(image);
  parts.next.focus();
  return undefined;
}

function step(name, title, by) {
  return el("button", { class: "icon-button step", type: "button", "aria-label": title, title, onclick: () => go(by) }, icon(name));
}

function go(by) {
  const next = further(by, view.image);
  if (next !== null) show(next);
}

function show(image) {
  const { parts } = view;
  view.image = image;
  parts.img.removeAttribute("src");
  parts.stage.classList.remove("broken");
  parts.img.src = largePicture(image, state.set.list);
  parts.img.alt = fileName(state.set.images[image]);
  parts.path.textContent = state.set.images[image];
  const place = state.position[image];
  parts.place.textContent = place >= 0 ? `${number(place + 1)} of ${number(state.list.length)}` : "not in this view";
  const [back, next] = [further(-1, image), further(1, image)];
  parts.back.disabled = place < 0 || back === null;
  parts.next.disabled = place < 0 || next === null;
  if (place >= 0) focusImage(image, { take: false });
  fill();
  if (next !== null && place >= 0) new Image().src = largePicture(next, state.set.list); // so that the next one is there at once
}

function fill() {
  const { image, parts } = view;
  const { label: now, probability, known, zeroShot } = shown(image);
  const said = known ? "your label" : now >= 0 ? percent(probability) : `score ${percent(state.labels.columns.none[image])}`;
  parts.label.replaceChildren(el("strong", {}, now === -3 ? "not yet encoded" : className(now)), el("span", { class: known ? "tag yours" : "tag" }, said));
  if (zeroShot >= 0 && zeroShot !== now) parts.label.append(el("span", { class: "quiet" }, `zero-shot: ${className(zeroShot)}`));
  parts.forget.hidden = !known;
  for (const button of parts.buttons.children) button.disabled = !labelled();
  details(image).then((found) => {
    if (view?.image !== image || found === null) return;
    parts.bars.replaceChildren(...found.top.map(bar));
    parts.near.replaceChildren(...found.neighbours.map(neighbour));
  });
}

function bar({ id, probability, zero_shot: zeroShot }, place) {
  const now = el("span", { class: "bar-now" });
  const zero = el("span", { class: "bar-zero" });
  now.style.transform = `scaleX(${probability})`;
  zero.style.transform = `scaleX(${zeroShot})`;
  return el("li", {}, el("button", { type: "button", "data-class": id, disabled: !labelled(), onclick: () => label([view.image], id), "aria-label": `${className(id)}: ${percent(probability)}, zero-shot ${percent(zeroShot)}` },
    el("kbd", {}, String(place + 1)), el("span", { class: "bar-name" }, className(id)), el("span", { class: "bar-track" }, now, zero), el("span", { class: "bar-number" }, percent(probability)), el("span", { class: "bar-number zero" }, percent(zeroShot))));
}

function neighbour({ image, similarity }) {
  const { label: now, known } = shown(image);
  return el("li", {}, el("button", { type: "button", title: state.set.images[image], onclick: () => show(image) },
    el("img", { alt: "", src: smallPicture(image, state.set.list) }),
    el("span", { class: known ? "near-label yours" : "near-label" }, className(now)), el("span", { class: "quiet" }, similarity.toFixed(2))));
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("dialog") !== view.dialog) return;
  if (event.key === "ArrowLeft") go(-1);
  else if (event.key === "ArrowRight") go(1);
  else if (event.key === " " && !event.target.matches(".bars button, .near button, .viewer-buttons button")) view.dialog.close();
  else return;
  event.preventDefault();
}

export function startViewer() {
  on("labels pending", () => {
    if (view) fill();
  });
}
