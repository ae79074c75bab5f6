// The bar above the grid: views, search, size, what the corrections did, filters, the limit "accept above".

import { setReject } from "./actions.js";
import { byId, count, el, icon, later, number } from "./dom.js";
import { setSize, tileSize } from "./grid.js";
import { focusImage } from "./moves.js";
import { believable, choose, className, labelled, on, order, state, tell } from "./state.js";
import { acceptance, VIEWS, viewCounts } from "./views.js";

const figures = new Map(); // view → where its number is

function startViews() {
  for (const { name, title, key } of VIEWS) {
    const figure = el("span", { class: "view-count" });
    const input = el("input", { type: "radio", name: "view", value: name, "data-testid": `view-${name}`, onchange: () => choose({ view: name, only: null }) });
    byId("views").append(el("label", { class: "view", title: key }, input, el("span", {}, title), figure));
    figures.set(name, figure);
  }
}

function showViews() {
  const counts = viewCounts(state.labels);
  for (const [name, figure] of figures) figure.textContent = labelled() && counts[name] ? number(counts[name]) : "";
}

function showChosen() {
  for (const input of byId("views").querySelectorAll("input")) {
    input.checked = state.only === null && input.value === state.view;
    input.disabled = !labelled();
  }
  byId("search").value = state.search;
  const chips = [];
  if (state.only) chips.push(chip(`${count(state.list.length, "image")} ${state.only.title}`, () => choose({ only: null })));
  if (state.filter !== null) chips.push(chip(`label: ${className(state.filter)}`, () => choose({ filter: null })));
  byId("chips").replaceChildren(...chips);
  byId("reject").hidden = state.view !== "none" || state.only !== null;
  showEmpty();
}

function chip(text, away) {
  return el("span", { class: "chip" }, el("span", {}, text), el("button", { type: "button", "aria-label": `Take away the filter ${text}`, onclick: away }, icon("close")));
}

const NOTHING = {
  worth: "No image is here.",
  label: "No image is here.",
  changed: "No label differs from what zero-shot said.",
  none: "No image looks like none of the classes.",
  corrected: "You have said nothing yet. Click on an image, or press a key from 1 to 9, to give it its true label.",
};

function showEmpty() {
  const empty = byId("empty");
  empty.hidden = state.list.length > 0;
  if (!empty.hidden) {
    const narrowed = state.search || state.filter !== null;
    empty.replaceChildren(
      icon(narrowed ? "search" : "check"),
      el("p", {}, narrowed ? "No image fits this filter." : NOTHING[state.view]),
      ...(narrowed ? [el("button", { class: "button", type: "button", onclick: () => choose({ filter: null, search: "" }) }, "Take the filter away")] : []),
    );
  }
}

function showCorrections() {
  const { corrections, others } = state.labels;
  const place = byId("corrections");
  if (!labelled()) place.replaceChildren("Labels can be corrected when all images are encoded.");
  else if (corrections === 0) place.replaceChildren("Correct an image, and the rest follow.");
  else {
    const strong = (text) => el("strong", {}, text);
    place.replaceChildren("your ", strong(count(corrections, "correction")), " changed ", strong(count(others, "other")));
  }
}

function showRefresh() {
  const button = byId("refresh");
  button.hidden = !state.stale || !labelled();
  button.lastElementChild.textContent = state.view === "worth" && !state.only ? "Next most useful" : "Refresh order";
}

function refresh() {
  const hadFocus = document.activeElement === byId("refresh");
  if (state.view === "worth" && !state.only) choose({ view: "worth" });
  else order();
  if (state.focus >= 0) focusImage(state.focus, { take: hadFocus });
}

function showAccept() {
  byId("accept-value").textContent = state.accept.toFixed(2);
  byId("accept").disabled = !labelled();
  if (!labelled()) return byId("accept-text").replaceChildren();
  const { images, right } = acceptance(state.labels, state.accept);
  const about = images && believable() ? `, about ${number(Math.round(right))} right (${(100 * right / images).toFixed(1)} %)` : "";
  return byId("accept-text").replaceChildren(`accepts ${number(images)} of ${number(state.set.images.length)}${about}`);
}

function showReject() {
  const { reject } = state.labels;
  const box = el("input", { type: "checkbox", "data-testid": "reject", onchange: () => setReject(box.checked ? 0.5 : null) });
  box.checked = reject !== null;
  byId("reject").replaceChildren(el("label", { title: "Give “none of these” to all images with such a score" }, box, `reject above ${(reject ?? 0.5).toFixed(2)}`));
}

export function startTools() {
  startViews();
  const size = byId("size");
  size.value = tileSize();
  size.addEventListener("input", () => setSize(Number(size.value)));
  byId("search").addEventListener("input", later((event) => choose({ search: event.target.value }), 120));
  byId("refresh").addEventListener("click", refresh);
  byId("accept").addEventListener("input", (event) => {
    state.accept = Number(event.target.value);
    state.dim = true;
    tell("accept");
  });
  on("labels", () => {
    showViews();
    showCorrections();
    showReject();
  });
  on("labels list", () => {
    showChosen();
    showRefresh();
  });
  on("labels accept", showAccept);
}
