// What the server knows of one image (its nine most probable classes, its neighbours), kept until labels change.

import { getImage } from "./api.js";
import { trouble } from "./connection.js";
import { state } from "./state.js";

let version = -1;
let known = new Map();

/** A promise of the details of an image; null if the server did not give them. */
export function details(image) {
  if (version !== state.labels.version) {
    version = state.labels.version;
    known = new Map();
  }
  if (!known.has(image)) {
    const asked = getImage(image).catch((error) => {
      known.delete(image);
      trouble(error);
      return null;
    });
    known.set(image, asked);
  }
  return known.get(image);
}

/** The nine most probable classes that can still be chosen: [{id, probability, zero_shot}]. */
export async function topClasses(image) {
  const found = await details(image);
  return (found?.top ?? []).filter(({ id }) => state.names.has(id)).slice(0, 9);
}
