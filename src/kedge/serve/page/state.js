// What the page knows, in one object, and who wants to hear when it changes.
//
// The order of the grid never changes under a person's hands. It is made when a view, filter or search is chosen, and
// when "next most useful" (or "refresh") is pressed. After a correction every image stays where it is, with its new label
// and a mark; an image that no longer belongs to the view stays until then too. So a person can work through
// the list from left to right, and the tile under the cursor is the one that was there before.

import { listOf, sameOrder } from "./views.js";

export const NONE = -2; // a person said: none of these
export const NOBODY = -1; // the label of an image that is none of these
export const NOT_YET = -3; // not yet encoded

export const state = {
  set: null, // GET /api/set
  labels: null, // GET /api/labels
  names: new Map(), // class id → class
  view: "worth",
  filter: null, // only images of this class
  only: null, // only these images: {title, images}
  search: "",
  accept: 0.5,
  dim: false, // dim what is below; from the first touch of the slider on
  list: [], // numbers of the images in the grid, in order
  groups: null, // [{id, start, count}] in the view "by label"
  position: new Int32Array(0), // image → place in the list, or −1
  stale: false, // the order would be another if it were made now
  focus: -1, // the image that has, or last had, the focus
  anchor: -1, // where a range of selected images begins
  selected: new Set(),
  pending: new Map(), // image → label on its way to the server: class id, NONE or null
  flash: { images: new Set(), since: 0 },
};

const listeners = new Map();

/** Hear of "set", "labels", "list", "anew", "focus", "selection", "accept", "pending", "batch", "classes". */
export function on(kinds, call) {
  for (const kind of kinds.split(" ")) {
    if (!listeners.has(kind)) listeners.set(kind, []);
    listeners.get(kind).push(call);
  }
}

export function tell(kind) {
  for (const call of listeners.get(kind) ?? []) call();
}

export const labelled = () => state.labels !== null && state.labels.phase === "labelled";

/** May the probabilities be believed? With the verdict "do not use", a share of right labels would mislead. */
export const believable = () => labelled() && state.labels.verdict.level !== "do not use";

export const className = (id) => (id < 0 ? "none of these" : (state.names.get(id)?.name ?? `class ${id}`));

/** What to show of an image: with labels that are on their way to the server. */
export function shown(image) {
  const columns = state.labels.columns;
  const zeroShot = columns.zero_shot[image];
  if (state.pending.has(image)) {
    const said = state.pending.get(image);
    if (said !== null) {
      return { label: said === NONE ? NOBODY : said, probability: 1, known: true, zeroShot, waiting: true };
    }
  }
  let label = columns.label[image];
  let probability = columns.probability[image];
  if (label === NOT_YET && zeroShot >= 0) {
    label = zeroShot;
    probability = columns.zero_shot_probability[image];
  }
  const known = columns.known[image] !== -1 && !state.pending.has(image);
  return { label, probability: known ? 1 : probability, known, zeroShot, waiting: state.pending.has(image) };
}

let listed = null; // the list of images that is in the grid

/** Take the answer of the server. */
export function takeLabels(labels) {
  const before = state.labels;
  state.labels = labels;
  state.names = new Map(labels.classes.map((one) => [one.id, one]));
  if (state.filter !== null && !state.names.has(state.filter)) state.filter = null;
  const fresh = listOf(state);
  const other = before?.phase !== labels.phase || listed !== state.set.list;
  listed = state.set.list;
  if (other) {
    state.focus = -1; // numbers or order are others: begin with the first image
    tell("anew");
  }
  if (other || state.list.length === 0) showList(fresh);
  else state.stale = !sameOrder(fresh, state.list);
  tell("labels");
}

/** Make the order anew. */
export function order() {
  tell("anew");
  showList(listOf(state));
}

function showList({ images, groups }) {
  state.list = images;
  state.groups = groups;
  state.stale = false;
  state.position = new Int32Array(state.set.images.length).fill(-1);
  images.forEach((image, place) => {
    state.position[image] = place;
  });
  for (const image of state.selected) if (state.position[image] < 0) state.selected.delete(image);
  if (state.focus < 0 || state.position[state.focus] < 0) state.focus = images.length ? images[0] : -1;
  tell("list");
}

/** Choose what the grid shows: {view?, filter?, only?, search?}. */
export function choose(changes) {
  Object.assign(state, changes);
  if (state.labels === null) return;
  state.focus = -1;
  state.selected.clear();
  if ("view" in changes) order();
  else showList(listOf(state));
}
