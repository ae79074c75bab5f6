// Which images a view shows, in which order, and what a limit accepts. Nothing here touches the page.

export const VIEWS = [
  { name: "worth", title: "Worth a look", key: "most useful first; corrected ones last" },
  { name: "label", title: "By label", key: "grouped, the largest group first" },
  { name: "changed", title: "Changed", key: "another label than zero-shot's" },
  { name: "none", title: "None of these", key: "highest score first" },
  { name: "corrected", title: "Corrected", key: "what you said" },
];

const STRANGE = 0.5; // above this score an image looks like none of the classes

const belongs = {
  worth: () => true,
  label: () => true,
  changed: (columns, image) => columns.label[image] !== columns.zero_shot[image] && columns.label[image] !== -3,
  none: (columns, image) =>
    columns.label[image] === -1 || (columns.none[image] > STRANGE && columns.known[image] < 0),
  corrected: (columns, image) => columns.known[image] !== -1,
};

/** How many images each view has. */
export function viewCounts(labels) {
  const columns = labels.columns;
  const found = { changed: 0, none: 0, corrected: 0 };
  for (let image = 0; image < columns.label.length; image += 1) {
    for (const view in found) if (belongs[view](columns, image)) found[view] += 1;
  }
  return found;
}

/** {images, groups}: the images of the chosen view, filter and search, in order. */
export function listOf({ set, labels, view, filter, only, search }) {
  const columns = labels.columns;
  const wanted = search.trim().toLowerCase();
  const among = only === null ? null : new Set(only.images);
  const images = [];
  const encoding = labels.phase === "encoding";
  for (let image = 0; image < set.images.length; image += 1) {
    if (among !== null ? !among.has(image) : !encoding && !belongs[view](columns, image)) continue;
    if (filter !== null && columns.label[image] !== filter) continue;
    if (wanted && !set.images[image].toLowerCase().includes(wanted)) continue;
    images.push(image);
  }
  if (encoding) return { images, groups: null };
  if (view === "label") return byLabel(images, columns);
  if (view === "none") images.sort((one, two) => columns.none[two] - columns.none[one]);
  else images.sort((one, two) => (columns.rank[one] || Infinity) - (columns.rank[two] || Infinity) || one - two);
  return { images, groups: null };
}

/** Groups of one label each, the largest first, "none of these" last; inside, the most probable first. */
function byLabel(images, columns) {
  const found = new Map();
  for (const image of images) {
    const label = columns.label[image];
    if (!found.has(label)) found.set(label, []);
    found.get(label).push(image);
  }
  const order = [...found].sort(([one, a], [two, b]) => (one < 0) - (two < 0) || b.length - a.length || one - two);
  const groups = [];
  const all = [];
  for (const [id, members] of order) {
    members.sort((one, two) => columns.probability[two] - columns.probability[one]);
    groups.push({ id, start: all.length, count: members.length });
    for (const image of members) all.push(image);
  }
  return { images: all, groups };
}

export function sameOrder({ images }, list) {
  return images.length === list.length && images.every((image, place) => image === list[place]);
}

/** Is the label of an image accepted at this limit? Known labels are; "none of these" is not. */
export function accepted(columns, image, limit) {
  if (columns.label[image] < 0) return false;
  return columns.known[image] >= 0 || columns.probability[image] >= limit;
}

/** {images, right}: how many a limit accepts, and how many of these are expected to be right. */
export function acceptance(labels, limit) {
  const columns = labels.columns;
  let images = 0;
  let right = 0;
  for (let image = 0; image < columns.label.length; image += 1) {
    if (!accepted(columns, image, limit)) continue;
    images += 1;
    right += columns.known[image] >= 0 ? 1 : columns.probability[image];
  }
  return { images, right };
}
