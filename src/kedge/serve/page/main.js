// The page of kedge serve: starts its parts, fetches the set, listens to the server.
//
// Hooks for browser tests (data-testid):
//   grid, tile (data-image), empty, hints            the grid; a tile has .label, .number, .was and the classes known,
//                                                    changed, nobody, dimmed, selected, waiting; .ring while it flashes
//   verdict, expected, measured, corrections         the head, and "your 3 corrections changed 41 others"
//   undo, redo, export-menu, export-panel, export-labels-csv, export-labels-json, export-metadata-csv, export-known,
//   export-folders, export-said, export-all, export-accepted
//   view-select, with the radio buttons view-worth, view-label, view-changed, view-none, view-corrected; search; reject;
//   refresh-order ("next most useful"); accept-slider, accept-text
//   class-row (data-class), class-here, class-filter, class-menu-panel, class-show, class-rename, class-prompt, class-drop
//   add-class, class-dialog, add-class-name, add-class-prompt, add-class-submit
//   picker, picker-option (data-class), picker-search, picker-add, none, confirm, forget, enlarge
//   large-view, progress, toast, help, banner-lost, banner-address, banner-new, banner-notice, banner-failed

import { catchUp, load, takeBatch } from "./actions.js";
import { listen } from "./api.js";
import { startClasses } from "./classes.js";
import { banner, connected, showNew, trouble } from "./connection.js";
import { byId, sentence } from "./dom.js";
import { startDrawer } from "./drawer.js";
import { startExports } from "./exports.js";
import { refill, startGrid, tileOf } from "./grid.js";
import { startHeader } from "./header.js";
import { startHints } from "./hints.js";
import { startKeys } from "./keys.js";
import { startMoves, targets } from "./moves.js";
import { openPicker } from "./picker.js";
import { showProgress, startProgress } from "./progress.js";
import { labelled, on } from "./state.js";
import { startTools } from "./tools.js";
import { openViewer, startViewer } from "./viewer.js";

function open(image) {
  if (labelled()) openPicker(targets(), tileOf(image), { enlarge: openViewer });
  else openViewer(image);
}

function heard(kind, data) {
  if (kind === "progress") showProgress(data);
  else if (kind === "batch") takeBatch(data);
  else if (kind === "version") catchUp(data.version, data.revision);
  else if (kind === "new") showNew(data);
  else if (kind === "notice") banner("notice", sentence(data.text.replace(/^note: /, "")), { close: true });
  else if (kind === "failed") banner("failed", sentence(data.error), { bad: true, close: true });
}

startGrid();
startMoves({ open, enlarge: openViewer });
startHeader();
startTools();
startClasses();
startDrawer();
startExports();
startProgress();
startViewer();
startHints();
startKeys();
on("batch", refill);
on("labels", () => document.body.classList.add("ready"));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("grid").querySelector('[tabindex="0"]')?.focus();
});
load();
let lost = false;
listen(heard, (yes) => {
  connected(yes);
  if (yes && lost) load();
  lost = !yes;
}, trouble);
