// A small panel at a button: a native popover, so Escape and a click elsewhere close it.

import { el } from "./dom.js";

const EDGE = 8; // px to the edge of the window

/** Make one. openAt(element) shows it below (or above) an element, and gives the focus back when it closes. */
export function popover(name, label) {
  const panel = el("div", { class: "popover", popover: "auto", role: "dialog", "aria-label": label, "data-testid": `${name}-panel` });
  document.body.append(panel);
  let from = null;
  panel.openAt = (element) => {
    from = element;
    panel.showPopover();
    place(panel, element.getBoundingClientRect());
    panel.querySelector("input:checked, a, button, input")?.focus();
  };
  panel.addEventListener("toggle", (event) => {
    from?.setAttribute("aria-expanded", String(event.newState === "open"));
    if (event.newState === "closed" && (document.activeElement === document.body || panel.contains(document.activeElement))) from?.focus();
  });
  return panel;
}

/** Put a fixed element beside a rectangle, inside the window. */
export function place(element, { left, right, top, bottom }) {
  const { offsetWidth: width, offsetHeight: height } = element;
  const fits = left + width + EDGE <= innerWidth;
  const x = fits ? left : Math.max(EDGE, Math.min(right - width, innerWidth - width - EDGE));
  const below = bottom + 4 + height + EDGE <= innerHeight;
  const y = below ? bottom + 4 : Math.max(EDGE, Math.min(top - 4 - height, innerHeight - height - EDGE));
  element.style.left = `${Math.max(EDGE, x)}px`;
  element.style.top = `${y}px`;
}
