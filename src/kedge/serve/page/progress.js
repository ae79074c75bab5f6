// A bar while images are encoded, with images per second and the time left.

import { byId, duration, number } from "./dom.js";
import { on, state } from "./state.js";

export function showProgress({ what, done, total, rate, left }) {
  const encoding = state.labels?.phase === "encoding";
  const bar = byId("progress-bar");
  byId("progress").hidden = !encoding && done >= total;
  if (done >= total) { // encoded; the labels are on their way
    bar.removeAttribute("value");
    byId("progress-what").textContent = "Labelling all images …";
    byId("progress-rate").textContent = "";
    return;
  }
  bar.max = total;
  bar.value = done;
  const words = what === "images" ? "Encoding images" : what[0].toUpperCase() + what.slice(1);
  byId("progress-what").textContent = `${words}: ${number(done)} of ${number(total)}`;
  const parts = [rate ? `${number(rate < 10 ? Number(rate.toFixed(1)) : Math.round(rate))} images/s` : null, left === null ? null : `${duration(left)} left`];
  byId("progress-rate").textContent = parts.filter(Boolean).join(" · ");
}

export function startProgress() {
  let before = null;
  on("labels", () => {
    const { phase } = state.labels;
    const encoding = phase === "encoding";
    document.body.classList.toggle("encoding", encoding);
    if (encoding && before !== "encoding") showProgress({ what: "images", done: 0, total: state.set.images.length, rate: 0, left: null });
    if (!encoding && before === "encoding") byId("progress").hidden = true;
    before = phase;
  });
}
