// Talks to the server: requests, addresses of pictures, and the stream of events.

/** The server said no, or nothing: `status` is 0 if it did not answer. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export const NO_ANSWER = "The server does not answer.";

async function ask(path, method = "GET", body = undefined) {
  const options = { method, headers: { Accept: "application/json" } };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Refused(NO_ANSWER, 0);
  }
  let said = null;
  try {
    said = await answer.json();
  } catch {
    if (answer.ok) throw new Refused("The answer of the server was cut off.", 0);
  }
  if (!answer.ok) throw new Refused(said?.error ?? `The server refused this (${answer.status}).`, answer.status);
  return said;
}

export const getSet = () => ask("/api/set");
export const getLabels = () => ask("/api/labels");
export const getImage = (image) => ask(`/api/images/${image}`);
export const postLabel = (images, label, list) => ask("/api/label", "POST", { images, label, of: list });
export const postPresent = (classes, present) => ask("/api/present", "POST", { classes, present });
export const postReject = (threshold) => ask("/api/reject", "POST", { threshold });
export const postUndo = () => ask("/api/undo", "POST");
export const postRedo = () => ask("/api/redo", "POST");
export const addClass = (name, prompt) => ask("/api/classes", "POST", { name, prompt });
export const editClass = (id, changes) => ask(`/api/classes/${id}`, "PATCH", changes);
export const dropClass = (id) => ask(`/api/classes/${id}`, "DELETE");
export const encodeNew = () => ask("/api/encode-new", "POST");
export const exportFolders = (above) => ask("/api/export/folders", "POST", { above });

export const smallPicture = (image, list) => `/api/images/${image}/small?of=${encodeURIComponent(list)}`;
export const largePicture = (image, list) => `/api/images/${image}/large?of=${encodeURIComponent(list)}`;
export const exportAddress = (kind, above) => `/api/export/${kind}${above === null ? "" : `?above=${above}`}`;

const EVENTS = ["progress", "batch", "version", "new", "notice", "failed"];
const AGAIN = 2000; // ms until a stream that the browser gave up is opened again
const REFUSED = 30000; // the same if the address is not the right one: another tab may open that

/** Listen to events for ever: heard(kind, data); connected(true or false) when that changes.
 *
 * The browser opens a broken stream again by itself. It gives up if the server answers with an error. Then a request says
 * which error (an EventSource does not), and the stream is opened again a little later. */
export function listen(heard, connected, refused) {
  const stream = new EventSource("/api/events");
  stream.onopen = () => connected(true);
  stream.onerror = () => {
    connected(false);
    if (stream.readyState !== EventSource.CLOSED) return;
    getImage(0).then(() => AGAIN, (error) => {
      refused(error);
      return error.status === 401 ? REFUSED : AGAIN;
    }).then((wait) => setTimeout(() => listen(heard, connected, refused), wait));
  };
  for (const kind of EVENTS) {
    stream.addEventListener(kind, (event) => heard(kind, JSON.parse(event.data)));
  }
  window.addEventListener("pagehide", () => stream.close(), { once: true });
}
