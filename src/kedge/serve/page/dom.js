// Elements, and words for numbers. Text goes in as text, never as HTML: class names and paths are foreign.

/** el("button", {class: "x", onclick: f, "aria-label": "…", disabled: true}, child, "text"): an element. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

/** A picture of the sprite in index.html. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

export const byId = (id) => document.getElementById(id);

const NUMBER = new Intl.NumberFormat("en");

/** 1,234 */
export const number = (value) => NUMBER.format(value);

/** "1 image", "1,234 images"; a second form for words that need one. */
export const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;

/** 0.831 → "83 %"; with digits = 1: "83.1 %". Never "100 %" or "0 %" for what is only near. */
export function percent(share, digits = 0) {
  const step = 10 ** -digits;
  let value = 100 * share;
  if (share < 1 && value >= 100 - step / 2) return `> ${(100 - step).toFixed(digits)} %`;
  if (share > 0 && value < step / 2) return `< ${step.toFixed(digits)} %`;
  return `${value.toFixed(digits)} %`;
}

/** 75 → "1 min 15 s" */
export function duration(seconds) {
  const whole = Math.max(1, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.round((whole % 3600) / 60)} min`;
}

/** Text of the server, which begins with a small letter, as on a command line. */
export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** The last part of a path. */
export const fileName = (path) => path.slice(path.lastIndexOf("/") + 1);

/** A choice kept in this browser; storage may be forbidden. */
export const kept = {
  get(name) {
    try {
      return localStorage.getItem(`kedge-${name}`);
    } catch {
      return null;
    }
  },
  set(name, value) {
    try {
      if (value === null) localStorage.removeItem(`kedge-${name}`);
      else localStorage.setItem(`kedge-${name}`, value);
    } catch {
      // then it is not kept
    }
  },
};

/** Call once, `wait` ms after the last of many calls. */
export function later(call, wait) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...values), wait);
  };
}
