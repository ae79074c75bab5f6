// On a narrow screen the list of classes is a drawer.

import { byId } from "./dom.js";

const drawer = byId("classes");
const button = byId("open-classes");
const narrow = matchMedia("(max-width: 900px)");

export function closeDrawer() {
  if (!drawer.classList.contains("open")) return false;
  drawer.classList.remove("open");
  byId("shade").hidden = true;
  button.setAttribute("aria-expanded", "false");
  settle();
  button.focus();
  return true;
}

function openDrawer() {
  drawer.classList.add("open");
  byId("shade").hidden = false;
  button.setAttribute("aria-expanded", "true");
  settle();
  drawer.querySelector("button, input")?.focus();
}

/** A closed drawer cannot be reached by Tab; behind an open one, nothing else can. */
function settle() {
  const open = drawer.classList.contains("open");
  drawer.inert = narrow.matches && !open;
  document.querySelector("main").inert = narrow.matches && open;
}

export function startDrawer() {
  button.addEventListener("click", openDrawer);
  byId("shade").addEventListener("click", closeDrawer);
  narrow.addEventListener("change", settle);
  settle();
}
