// Banners: the server does not answer, the address is not the right one, new images, notices.

import { encodeNew, Refused } from "./api.js";
import { byId, count, el, icon, sentence } from "./dom.js";
import { toast } from "./toast.js";

const place = byId("banners");
const PATIENCE = 1500; // ms without a connection until we say so
let timer = 0;

/** Show a banner of a kind; only one of each kind. content null: take it away. */
export function banner(kind, content, { bad = false, close = false } = {}) {
  place.querySelector(`[data-kind="${kind}"]`)?.remove();
  if (content === null) return;
  const shown = el("div", { class: bad ? "banner bad" : "banner", "data-kind": kind, "data-testid": `banner-${kind}`, role: bad ? "alert" : "status" });
  shown.append(...[content].flat());
  if (close) shown.append(el("button", { class: "icon-button", type: "button", "aria-label": "Close", onclick: () => shown.remove() }, icon("close")));
  place.append(shown);
}

const lost = () => banner("lost", "The server does not answer. What you said before is kept. If it was ended, start it again, and open the address that it prints.", { bad: true });

export function connected(yes) {
  clearTimeout(timer);
  if (yes) for (const kind of ["lost", "address"]) banner(kind, null);
  else timer = setTimeout(lost, PATIENCE);
}

/** Say that what a person just did is lost. */
export const notSaved = () => toast("This was not saved: the server does not answer.", { bad: true });

/** Say what went wrong with a request. */
export function trouble(error) {
  if (!(error instanceof Refused)) throw error;
  if (error.status === 0) lost();
  else if (error.status === 401 || error.status === 403) {
    connected(true);
    banner("address", "The server was started anew. Open the address that it printed; what you said before is kept.", { bad: true });
  } else toast(sentence(error.message), { bad: true });
}

/** There are new images in the folder. */
export function showNew({ count: images }) {
  if (!images) return banner("new", null);
  const button = el("button", { class: "button", type: "button", onclick: async () => {
    button.disabled = true;
    try {
      await encodeNew();
      banner("new", null);
    } catch (error) {
      button.disabled = false;
      trouble(error);
    }
  } }, "Encode them");
  return banner("new", [el("span", {}, `${count(images, "new image")} in the folder.`), button], { close: true });
}
