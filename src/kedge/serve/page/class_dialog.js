// A form: add a class, rename one, or change its prompt.

import { addClass, editClass } from "./actions.js";
import { el } from "./dom.js";
import { state } from "./state.js";

/** id: the class to change, none for a new one. field: where the focus goes. then: called with the answer. */
export function openClassDialog({ id = null, field = "name", name = "", then = () => {} }) {
  const one = id === null ? { name, prompt: null } : state.names.get(id);
  const nameField = el("input", { id: "class-name-field", "data-testid": "add-class-name", required: true, maxlength: 200, autocomplete: "off", value: one.name });
  const promptField = el("textarea", { id: "class-prompt-field", "data-testid": "add-class-prompt", rows: 2, maxlength: 1000, placeholder: example(one.name) });
  promptField.value = one.prompt ?? "";
  nameField.addEventListener("input", () => {
    promptField.placeholder = example(nameField.value);
  });
  const dialog = el("dialog", { class: "dialog", "aria-labelledby": "class-dialog-title", "data-testid": "class-dialog" });
  const submit = el("button", { class: "button primary", type: "submit", "data-testid": "add-class-submit" }, id === null ? "Add" : "Save");
  const form = el("form", { method: "dialog", onsubmit: async (event) => {
    event.preventDefault();
    if (!nameField.value.trim()) return nameField.focus();
    submit.disabled = true;
    const prompt = promptField.value.trim() || null;
    const given = nameField.value.trim();
    const changes = { ...(given !== one.name && { name: given }), ...(prompt !== one.prompt && { prompt }) };
    if (id !== null && Object.keys(changes).length === 0) return dialog.close();
    const answer = await (id === null ? addClass(given, prompt) : editClass(id, changes));
    submit.disabled = false;
    if (answer === null) return nameField.focus();
    dialog.close();
    return then(answer);
  } },
  el("h2", { id: "class-dialog-title" }, id === null ? "Add a class" : `Change “${one.name}”`),
  el("label", { for: "class-name-field" }, "Name"), nameField,
  el("label", { for: "class-prompt-field" }, "Prompt ", el("span", { class: "quiet" }, "– optional: a sentence that describes such an image")), promptField,
  el("p", { class: "quiet" }, "Only the text is encoded again. The images stay as they are."),
  el("div", { class: "dialog-buttons" }, el("button", { class: "button", type: "button", onclick: () => dialog.close() }, "Cancel"), submit));
  dialog.append(form);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  const first = field === "prompt" ? promptField : nameField;
  first.focus();
  first.select();
}

function example(name) {
  return (state.set.templates[0] ?? "a photo of a {}.").replace("{}", name.trim() || "…");
}
