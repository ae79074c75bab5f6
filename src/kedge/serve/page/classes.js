// The list of classes: found, perhaps, not here, all others. A tick says "here"; the name shows the images of a class.
//
// "Perhaps" are classes found of which no image has the label: some probability is theirs. One button unticks them all.
//
// Like the grid it keeps its order while a person works: a class that is unticked stays where it is, struck through, and
// classes found later come at the end. When the order is made anew, unticked classes go to the part "not here".

import { setPresent } from "./actions.js";
import { smallPicture } from "./api.js";
import { openClassDialog } from "./class_dialog.js";
import { openClassMenu } from "./class_menu.js";
import { byId, count, el, icon, later, number } from "./dom.js";
import { closeDrawer } from "./drawer.js";
import { choose, labelled, on, state } from "./state.js";

const DOUBTFUL = 0.3; // evidence below
const MANY = 200; // rows of other classes at once
const rows = new Map(); // class id → its row
let found = []; // ids, in the order shown
let perhaps = [];
let parts;

function makeRow(id) {
  const here = el("input", { type: "checkbox", "data-testid": "class-here", onchange: () => setPresent([id], here.checked) });
  const show = el("button", { class: "class-name", type: "button", onclick: () => {
    choose({ filter: state.filter === id ? null : id, only: null });
    closeDrawer();
  } }, el("span", { class: "class-title" }), el("span", { class: "class-evidence" }));
  const more = el("button", { class: "icon-button small", type: "button", "aria-haspopup": "dialog", onclick: () => openClassMenu(id, more) }, icon("more"));
  return el("li", { class: "class-row", "data-testid": "class-row", "data-class": id }, here,
    el("span", { class: "example" }, el("img", { alt: "", loading: "lazy", decoding: "async" })), show, el("span", { class: "class-count" }), more);
}

function fillRow(id) {
  if (!rows.has(id)) rows.set(id, makeRow(id));
  const row = rows.get(id);
  const one = state.names.get(id);
  const [here, example, show, figure, more] = row.children;
  here.checked = one.present;
  here.disabled = !labelled();
  here.setAttribute("aria-label", `${one.name} is here`);
  here.title = one.present ? "Untick if no image shows this" : "Tick if some image shows this";
  show.firstChild.textContent = one.name;
  const words = evidence(one);
  show.lastChild.textContent = words;
  show.lastChild.dataset.evidence = words;
  show.setAttribute("aria-pressed", String(state.filter === id));
  show.title = one.prompt ? `${one.name}: “${one.prompt}”` : one.name;
  figure.textContent = one.count || one.evidence !== null ? number(one.count) : "";
  figure.setAttribute("aria-label", count(one.count, "image"));
  more.setAttribute("aria-label", `More about ${one.name}`);
  row.classList.toggle("chosen", state.filter === id);
  row.classList.toggle("absent", !one.present);
  const img = example.firstChild;
  const address = one.example === null || one.example === undefined ? null : smallPicture(one.example, state.set.list);
  if (address !== null && img.getAttribute("src") !== address) img.src = address;
  return row;
}

function evidence(one) {
  if (!one.present) return "not here";
  if (one.known > 0) return "confirmed by you";
  if (one.evidence === null || one.evidence === undefined) return one.prompt ? "own prompt" : "";
  return one.evidence < DOUBTFUL ? "doubtful" : "likely";
}

/** While images are encoded: the classes of zero-shot's labels so far, the largest first. */
function soFar() {
  const counts = new Map();
  state.labels.columns.zero_shot.forEach((id, image) => {
    if (id < 0) return;
    if (!counts.has(id)) counts.set(id, { count: 0, example: image });
    counts.get(id).count += 1;
  });
  for (const [id, some] of counts) Object.assign(state.names.get(id) ?? {}, some);
  return [...counts].sort(([, one], [, two]) => two.count - one.count).map(([id]) => id);
}

function draw() {
  const now = labelled() ? state.labels.found : soFar();
  const set = new Set(now);
  const stays = (id) => set.has(id) || state.names.get(id)?.present === false;
  const named = (id) => !labelled() || state.names.get(id).count > 0 || state.names.get(id).known > 0;
  found = labelled() ? found.filter(stays) : [];
  found.push(...now.filter((id) => named(id) && !found.includes(id)));
  perhaps = perhaps.filter((id) => stays(id) && !found.includes(id));
  perhaps.push(...now.filter((id) => state.names.get(id).present && !found.includes(id) && !perhaps.includes(id)));
  const listed = new Set([...found, ...perhaps]);
  const all = [...state.names.values()];
  const away = all.filter((one) => !one.present && !listed.has(one.id));
  const wanted = parts.filter.value.trim().toLowerCase();
  const others = all.filter((one) => one.present && !set.has(one.id) && one.name.toLowerCase().includes(wanted));
  fillPart(parts.found, found);
  fillPart(parts.perhaps, perhaps);
  parts.perhapsPart.hidden = perhaps.length === 0;
  parts.perhapsTitle.textContent = `Perhaps · ${number(perhaps.length)}`;
  fillPart(parts.away, away.map((one) => one.id));
  parts.awayPart.hidden = away.length === 0;
  parts.awayTitle.textContent = `Not here · ${number(away.length)}`;
  if (parts.othersPart.open) fillPart(parts.others, others.slice(0, MANY).map((one) => one.id));
  parts.rest.textContent = others.length > MANY ? `and ${number(others.length - MANY)} more: type to find them` : "";
  const left = all.filter((one) => one.present && !set.has(one.id)).length;
  parts.othersPart.hidden = left === 0;
  parts.othersTitle.textContent = `All other classes · ${number(left)}`;
  parts.title.textContent = labelled() ? `${count(now.filter(named).length, "class", "classes")} found` : "Classes so far";
  for (const id of rows.keys()) if (!state.names.has(id)) rows.delete(id);
}

/** Put the rows of these classes in order; rows that stay are not touched, so the focus stays too. */
function fillPart(list, ids) {
  const wanted = ids.map(fillRow);
  const keep = new Set(wanted);
  for (const row of [...list.children]) if (!keep.has(row)) row.remove();
  wanted.forEach((row, place) => {
    if (list.children[place] !== row) list.insertBefore(row, list.children[place] ?? null);
  });
}

function noneOfPerhaps() {
  const ids = perhaps.filter((id) => state.names.get(id).present);
  perhaps = []; // they go to the part "not here" at once
  if (ids.length > 0) setPresent(ids, false);
}

export function startClasses() {
  const filter = el("input", { type: "search", placeholder: "Find a class", "aria-label": "Find among all other classes", autocomplete: "off", spellcheck: "false", "data-testid": "class-filter" });
  parts = {
    title: el("h2", {}), found: el("ul", { class: "class-list", "aria-label": "Classes found" }),
    perhapsPart: el("section", { class: "class-part" }), perhapsTitle: el("h3", {}), perhaps: el("ul", { class: "class-list", "aria-label": "Classes that are perhaps here" }),
    awayPart: el("section", { class: "class-part" }), awayTitle: el("h3", {}), away: el("ul", { class: "class-list away", "aria-label": "Classes that are not here" }),
    othersPart: el("details", { class: "class-part" }), othersTitle: el("summary", {}), others: el("ul", { class: "class-list others", "aria-label": "All other classes" }),
    rest: el("p", { class: "quiet" }), filter,
  };
  const add = el("button", { class: "button", type: "button", "data-testid": "add-class", onclick: () => openClassDialog({}) }, icon("plus"), "Add");
  const none = el("button", { class: "button", type: "button", "data-testid": "none-of-perhaps", onclick: noneOfPerhaps }, "None is here");
  parts.perhapsPart.append(
    el("div", { class: "classes-head" }, parts.perhapsTitle, none),
    el("p", { class: "quiet" }, "No image has one of these labels, but they are not ruled out."),
    parts.perhaps,
  );
  parts.awayPart.append(parts.awayTitle, parts.away);
  parts.othersPart.append(parts.othersTitle, filter, parts.others, parts.rest);
  parts.othersPart.addEventListener("toggle", draw);
  filter.addEventListener("input", later(draw, 100));
  byId("classes").append(
    el("div", { class: "classes-head" }, parts.title, add, el("button", { class: "icon-button only-narrow", type: "button", "aria-label": "Close the classes", onclick: closeDrawer }, icon("close"))),
    el("p", { class: "quiet classes-note" }, "Untick what no image shows. It helps at once."),
    el("div", { class: "classes-scroll" }, parts.found, parts.perhapsPart, parts.awayPart, parts.othersPart),
  );
  on("set", () => {
    add.hidden = !state.set.edit;
    rows.clear();
  });
  on("labels", () => {
    add.disabled = !labelled();
  });
  on("labels classes", draw);
  on("batch", later(draw, 150));
  on("list", () => {
    if (state.labels !== null && labelled()) draw();
  });
  on("anew", () => {
    found = [];
    perhaps = [];
  });
}
