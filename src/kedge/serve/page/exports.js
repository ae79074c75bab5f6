// The export menu: downloads, and folders by label.

import { exportAddress, exportFolders } from "./api.js";
import { trouble } from "./connection.js";
import { byId, count, el } from "./dom.js";
import { popover } from "./popover.js";
import { on, state } from "./state.js";
import { acceptance } from "./views.js";

const KINDS = [
  { kind: "labels.csv", what: "a table: image, label, probability, zero-shot" },
  { kind: "labels.json", what: "the same for programs" },
  { kind: "metadata.csv", what: "file_name, label, probability: for an imagefolder data set" },
  { kind: "known.csv", what: "your labels alone, for kedge adapt --known", all: true },
];

let onlyAccepted = false;

function fillMenu(menu) {
  const { images } = acceptance(state.labels, state.accept);
  const choice = (accepted, text) => {
    const input = el("input", { type: "radio", name: "export-which", "data-testid": accepted ? "export-accepted" : "export-all", onchange: () => {
      onlyAccepted = accepted;
      fillMenu(menu);
      menu.querySelector("input:checked").focus();
    } });
    input.checked = onlyAccepted === accepted;
    return el("label", {}, input, el("span", {}, text));
  };
  const above = onlyAccepted ? state.accept : null;
  const said = el("p", { class: "menu-note", role: "status", "data-testid": "export-said" });
  const links = KINDS.map(({ kind, what, all }) =>
    el("a", { class: "menu-item", href: exportAddress(kind, all ? null : above), download: kind, "data-testid": `export-${kind.split(".").join("-")}` },
      el("strong", {}, kind), el("span", { class: "quiet" }, what)));
  links[3].dataset.testid = "export-known";
  const folders = el("button", { class: "menu-item", type: "button", "data-testid": "export-folders", onclick: async () => {
    said.textContent = "Copying …";
    try {
      const done = await exportFolders(above);
      const gone = done.missing ? `; ${count(done.missing, "image is", "images are")} no longer there` : "";
      said.textContent = `${count(done.images, "image")} copied to ${done.folder}${gone}`;
    } catch (error) {
      said.textContent = "";
      trouble(error);
    }
  } }, el("strong", {}, "folders by label"), el("span", { class: "quiet" }, "copies of the images, a folder for each class"));
  menu.replaceChildren(
    el("fieldset", { class: "choice" }, el("legend", {}, "Which images"), choice(false, `all ${count(state.set.images.length, "image")}`),
      choice(true, `only the ${count(images, "image")} accepted above ${state.accept.toFixed(2)}`)),
    el("div", { class: "menu-list" }, ...links, folders),
    said,
  );
}

export function startExports() {
  const menu = popover("export", "Export");
  const button = byId("export");
  button.addEventListener("click", () => {
    fillMenu(menu);
    menu.openAt(button);
  });
  on("labels", () => {
    button.disabled = state.labels.phase !== "labelled";
  });
}
