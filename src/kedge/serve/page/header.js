// The head of the page: name of the set, verdict, expected and measured accuracy, undo and redo.

import { redo, undo } from "./actions.js";
import { byId, count, el, kept, percent } from "./dom.js";
import { believable, on, state } from "./state.js";

const MOVE = 600; // ms that a number takes to its new value

function showSet() {
  const { name, images, encoder, simulated, skipped, method } = state.set;
  document.title = `${name} – kedge`;
  byId("set-name").textContent = name;
  const parts = [count(images.length, "image"), encoder, method === "kedge" ? null : method];
  const meta = byId("set-meta");
  meta.replaceChildren(parts.filter(Boolean).join(" · "));
  const tags = el("span", { class: "tags" });
  if (simulated) tags.append(el("span", { class: "tag" }, "simulated pictures"));
  if (skipped.length) {
    const list = skipped.slice(0, 20).map(({ path, reason }) => `${path}: ${reason}`).join("\n");
    tags.append(el("span", { class: "tag", tabindex: "0", title: list, "aria-label": `${skipped.length} skipped. ${list}` }, `${skipped.length} skipped`));
  }
  if (tags.children.length) meta.append(" ", tags);
}

/** Let a number run to a new value, and say by how much it moved. */
function mover(stat, digits) {
  const figure = stat.querySelector(".figure");
  const delta = stat.querySelector(".delta");
  let shown = null;
  let frame = 0;
  return (value) => {
    stat.hidden = value === null;
    if (value === null || value === shown) return;
    const from = shown ?? value;
    shown = value;
    cancelAnimationFrame(frame);
    const began = performance.now();
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const step = (now) => {
      const part = still ? 1 : Math.min(1, Math.max(0, (now - began) / MOVE));
      figure.textContent = percent(from + (value - from) * (1 - (1 - part) ** 3), digits);
      if (part < 1) frame = requestAnimationFrame(step);
    };
    step(began);
    const points = 100 * (value - from);
    if (!delta) return;
    delta.textContent = Math.abs(points) < 0.05 ? "" : `${points > 0 ? "▲" : "▼"} ${Math.abs(points).toFixed(1)}`;
    delta.classList.toggle("down", points < 0);
  };
}

export function startHeader() {
  const moveExpected = mover(byId("expected"), 1);
  const moveMeasured = mover(byId("measured"), 1);
  const level = byId("level");
  const sentence = byId("sentence");
  on("set", showSet);
  on("labels", () => {
    const { verdict, accuracy, can_undo: canUndo, can_redo: canRedo, phase } = state.labels;
    level.hidden = !verdict;
    level.textContent = verdict?.level ?? "";
    level.dataset.level = verdict?.level ?? "";
    sentence.textContent = verdict ? withoutLevel(verdict) : phase === "encoding" ? "The verdict comes when all images are encoded. Until then, labels are zero-shot's." : "";
    sentence.title = sentence.textContent;
    moveExpected(believable() ? verdict.accuracy : null);
    moveMeasured(accuracy?.now ?? null);
    byId("measured").querySelector(".delta-note").textContent = accuracy ? `zero-shot ${percent(accuracy.zero_shot, 1)}` : "";
    byId("undo").disabled = !canUndo;
    byId("redo").disabled = !canRedo;
  });
  byId("undo").addEventListener("click", undo);
  byId("redo").addEventListener("click", redo);
  startTheme();
}

/** The badge says the level: the sentence need not say it again. */
function withoutLevel({ level, sentence }) {
  const start = `${level}: `;
  if (!sentence.toLowerCase().startsWith(start)) return sentence;
  const rest = sentence.slice(start.length);
  return rest[0].toUpperCase() + rest.slice(1);
}

/** System, light, dark: one button goes round. */
function startTheme() {
  const button = byId("theme");
  const themes = ["system", "light", "dark"];
  const show = () => {
    const now = document.documentElement.dataset.theme ?? "system";
    button.title = `Theme: ${now}`;
    button.setAttribute("aria-label", button.title);
  };
  button.addEventListener("click", () => {
    const now = document.documentElement.dataset.theme ?? "system";
    const next = themes[(themes.indexOf(now) + 1) % themes.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    kept.set("theme", next === "system" ? null : next);
    show();
  });
  show();
}
