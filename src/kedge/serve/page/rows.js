// Places images in rows. Nothing here touches the page, so 10,000 images cost a millisecond or two.

export const GAP = 10;
const CAPTION = 46; // height of the words below a thumbnail
const HEADING = 44;

/** {columns, width, height, rows, total}: rows are {top, height, start, end, group}; group is set in headings only. */
export function layOut(images, groups, boxWidth, size) {
  const columns = Math.max(2, Math.floor((boxWidth + GAP) / (size + GAP)));
  const width = Math.floor((boxWidth - GAP * (columns - 1)) / columns);
  const height = width + CAPTION;
  const rows = [];
  let top = 0;
  for (const part of groups ?? [{ start: 0, count: images }]) {
    if (groups) {
      rows.push({ top, height: HEADING, start: part.start, end: part.start, group: part });
      top += HEADING;
    }
    for (let start = part.start; start < part.start + part.count; start += columns) {
      rows.push({ top, height, start, end: Math.min(start + columns, part.start + part.count), group: null });
      top += height + GAP;
    }
  }
  return { columns, width, height, rows, total: top };
}

/** The last row that begins at or above y. */
export function rowAt(rows, y) {
  let low = 0;
  let high = rows.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (rows[middle].top <= y) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** The row of the image at this place of the list. */
export function rowOf(rows, place) {
  let low = 0;
  let high = rows.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (rows[middle].start <= place) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** The place `steps` rows below (or above) a place, in the same column if there is one. */
export function vertical(rows, place, steps) {
  let row = rowOf(rows, place);
  const column = place - rows[row].start;
  let found = row;
  const direction = Math.sign(steps);
  for (let left = Math.abs(steps); left > 0; left -= 1) {
    do row += direction;
    while (row >= 0 && row < rows.length && rows[row].group);
    if (row < 0 || row >= rows.length) break;
    found = row;
  }
  return Math.min(rows[found].start + column, rows[found].end - 1);
}
