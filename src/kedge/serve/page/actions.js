// What a person can do: each sends one change, shows it at once, and takes the server's answer.

import * as api from "./api.js";
import { count } from "./dom.js";
import { className, labelled, NOBODY, NONE, shown, state, takeLabels, tell } from "./state.js";
import { toast } from "./toast.js";
import { notSaved, trouble } from "./connection.js";

let waiting = 0; // changes on their way
let newest = 0; // version that an event spoke of

/** Take labels, unless newer ones are here already, and let the images flash whose label changed. */
async function take(labels, flash) {
  if (labels.revision !== state.set.revision) return load();
  const before = state.labels;
  if (before && labels.version < before.version) return undefined;
  if (flash && labels.last && labels.version !== before?.version) {
    state.flash = { images: new Set(labels.last.changed), since: performance.now() };
  }
  performance.mark("kedge-answer");
  takeLabels(labels);
  performance.measure("kedge-shown", "kedge-answer");
  return undefined;
}

/** Fetch everything: at the start, when the list of images is another, and when the server is back. */
export async function load() {
  const before = state.labels;
  try {
    const [set, labels] = await Promise.all([api.getSet(), api.getLabels()]);
    if (set.revision !== labels.revision || state.labels !== before) return void setTimeout(load, 500); // changed meanwhile
    state.set = set;
    state.pending.clear();
    newest = labels.version;
    tell("set");
    takeLabels(labels);
  } catch (error) {
    trouble(error);
    if (!error.status) setTimeout(load, 2000);
  }
  return undefined;
}

/** Fetch labels if an event spoke of newer ones: another tab changed them, or encoding is done. */
export async function catchUp(version = newest, revision = state.set?.revision) {
  newest = Math.max(newest, version);
  if (state.set === null) return;
  if (revision !== state.set.revision) return void load();
  if (waiting || newest <= state.labels.version) return;
  try {
    await take(await api.getLabels(), true);
  } catch (error) {
    trouble(error);
  }
}

/** Send a change. words(answer): what to say when it is done. True if it went well. */
async function send(change, words) {
  waiting += 1;
  let answer;
  try {
    answer = await change();
  } catch (error) {
    trouble(error);
    if (!error.status) notSaved();
    return null;
  } finally {
    waiting -= 1;
  }
  await take(answer, true);
  const said = words(answer);
  const changed = answer.last?.changed ?? [];
  if (said) toast(said, { show: changed.length ? changed : null, undo: answer.can_undo ? undo : null });
  catchUp();
  return answer;
}

const others = (answer) => count(answer.last?.changed.length ?? 0, "other label");

/** Give images a label: a class, NONE, or null to forget what was said. */
export async function label(images, id) {
  if (!labelled() || images.length === 0) return;
  const confirms = id !== null && images.every((image) => shown(image).label === (id === NONE ? NOBODY : id));
  for (const image of images) state.pending.set(image, id);
  state.selected.clear();
  tell("pending");
  tell("selection");
  const mine = new Map(images.map((image) => [image, id]));
  const settled = () => {
    for (const [image, said] of mine) if (state.pending.get(image) === said) state.pending.delete(image);
  };
  const what = id === null ? "forgotten label" : confirms ? "confirmation" : "correction";
  await send(
    () => api.postLabel(images, id, state.set.list).finally(settled),
    (answer) => `${count(images.length, what)} changed ${others(answer)}`,
  );
  tell("pending");
}

/** Confirm the labels that images have now; images of different labels are confirmed label by label. */
export async function confirm(images) {
  const groups = new Map();
  for (const image of images) {
    const now = shown(image).label;
    const id = now === NOBODY ? NONE : now;
    if (!groups.has(id)) groups.set(id, []);
    groups.get(id).push(image);
  }
  await Promise.all([...groups].map(([id, some]) => label(some, id)));
}

export const undo = () =>
  state.labels?.can_undo && send(api.postUndo, (answer) => `Undone. ${count(answer.last?.changed.length ?? 0, "other label")} changed`);
export const redo = () =>
  state.labels?.can_redo && send(api.postRedo, (answer) => `Done again. ${count(answer.last?.changed.length ?? 0, "other label")} changed`);

/** Tick or untick classes. */
export function setPresent(ids, present) {
  const before = new Map(ids.map((id) => [id, state.names.get(id).present]));
  const show = (value) => {
    for (const id of ids) state.names.get(id).present = value(id);
    tell("classes");
  };
  show(() => present);
  const what = ids.length === 1 ? `“${className(ids[0])}” is` : `${count(ids.length, "class", "classes")} are`;
  return send(
    () => api.postPresent(ids, present),
    (answer) => `${what} ${present ? "here" : "not here"}: ${count(answer.last?.changed.length ?? 0, "label")} changed`,
  ).then((answer) => {
    if (!answer) show((id) => before.get(id));
    return answer;
  });
}

export const setReject = (threshold) =>
  send(() => api.postReject(threshold), (answer) => `${count(answer.last?.changed.length ?? 0, "label")} changed`);

const classChange = (change, words) =>
  send(change, (answer) => `${words}. ${count(answer.last?.changed.length ?? 0, "label")} changed`);
export const addClass = (name, prompt) => classChange(() => api.addClass(name, prompt), `“${name}” is a class now`);
export const editClass = (id, changes) => classChange(() => api.editClass(id, changes), `“${changes.name ?? className(id)}” is saved`);
export const dropClass = (id) => classChange(() => api.dropClass(id), `“${className(id)}” is dropped`);

/** Zero-shot labels of a batch that was encoded just now. */
export function takeBatch({ images, zero_shot: labels, zero_shot_probability: probabilities }) {
  const columns = state.labels?.columns;
  if (!columns || state.labels.phase !== "encoding") return;
  images.forEach((image, place) => {
    columns.zero_shot[image] = labels[place];
    columns.zero_shot_probability[image] = probabilities[place];
  });
  tell("batch");
}
