"""How long a person waits for the page of `kedge serve`: from a key to the new labels on the screen, and at the start.

    python benchmarks/page_latency.py [--sizes 1000 10000] [--clicks 20] [--rounds 3]

Features are simulated (100 classes, 512 dimensions), pictures are small files made for this. A click is the key 2 on an
image: it gets its second most probable class, so others change too. The clock is the browser's own: from the event of
the key to the first frame after the labels are in the page. That time is split:

    ask      from the key to the request on its way
    solve    the solve alone, as the server says
    server   the rest until the first byte is back: the journal, the columns, JSON
    receive  the rest of the answer, and parsing it
    fill     labels into the page
    paint    until the frame is shown

The start is the time from the beginning of the navigation until the first thumbnails are painted, with labels:
`first` with an empty cache of thumbnails on the server, `again` with a full one. The browser's is empty.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from browsing import LABELLED, PATIENCE, browser, served
from machine import describe, sentence
from measuring import FILES, load, say, simulated
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Page

import kedge

CLASSES, EDGE = 100, 96  # EDGE: of the pictures, in pixels
WINDOW = {"width": 1400, "height": 900}
PARTS = ("ask", "solve", "server", "receive", "fill", "paint")
AIMS = {1000: 0.15, 10_000: 1.0}  # seconds from key to labels
START_AIM = 1.0

# Notes when the first thumbnail, and when all in sight, are painted with their labels.
WATCH_START = """
window.started = {};
const look = () => {
  const seen = [...document.querySelectorAll(".tile")].filter((tile) => tile.getBoundingClientRect().top < innerHeight);
  const done = seen.filter((tile) => tile.classList.contains("loaded") && tile.querySelector(".label").textContent);
  if (done.length) window.started.some ??= performance.now();
  if (done.length && done.length === seen.length) window.started.all = performance.now();
  else requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
# Notes when a key is pressed and when the frame after the answer is shown.
WATCH_CLICK = """() => {
  window.click = {};
  addEventListener("keydown", (event) => { window.click.key = event.timeStamp; }, { capture: true, once: true });
  new PerformanceObserver((list, observer) => {
    const shown = list.getEntriesByName("kedge-shown")[0];
    if (!shown) return;
    observer.disconnect();
    Object.assign(window.click, { answer: shown.startTime, shown: shown.startTime + shown.duration });
    requestAnimationFrame(() => setTimeout(() => {
      const asked = performance.getEntriesByType("resource").filter(({ name }) => name.endsWith("/api/label")).at(-1);
      Object.assign(window.click, { painted: performance.now(), asked: asked.startTime, first: asked.responseStart });
      document.body.dataset.clicked = Number(document.body.dataset.clicked ?? 0) + 1;
      performance.clearResourceTimings();
    }));
  }).observe({ type: "measure" });
}"""


def pictures(n: int) -> tuple[Path, Path]:
    """A feature file of n images, and the folder of its pictures; made if they are not there."""
    folder, file = FILES / f"page-{n}", FILES / f"page-{n}.safetensors"
    if not file.exists():
        features = load(simulated(n, CLASSES), n, CLASSES)
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        paths = [f"{i:05d}.jpg" for i in range(n)]
        for path in paths:
            few = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
            Image.fromarray(few).resize((EDGE, EDGE), Image.Resampling.BICUBIC).save(folder / path)
        provenance = {**features.provenance, "root": str(folder)}
        kedge.FeatureSet.from_arrays(features.image_features, features.head, paths=paths, provenance=provenance).save(
            file
        )
    return file, folder


def open_page(context: BrowserContext, address: str) -> tuple[Page, dict[str, float]]:
    """The page, and the seconds until it showed something and all."""
    page = context.new_page()
    page.add_init_script(WATCH_START)
    page.goto(address)
    page.locator(LABELLED).wait_for(timeout=PATIENCE)
    while "all" not in (times := page.evaluate("window.started")):
        page.wait_for_timeout(50)
    return page, {name: milliseconds / 1e3 for name, milliseconds in times.items()}


def click(page: Page, number: int) -> dict[str, float]:
    """The seconds of each part of one click, on the image at this place of the grid."""
    tile = page.locator(".tile").nth(number)
    tile.focus()
    image = tile.get_attribute("data-image")
    page.request.get(f"{page.url.split('?')[0]}api/images/{image}")  # not measured: a person looks before they click
    page.wait_for_timeout(300)
    page.evaluate(WATCH_CLICK)
    page.keyboard.press("2")
    page.locator(f'body[data-clicked="{number + 1}"]').wait_for(timeout=PATIENCE)
    times = {name: value / 1e3 for name, value in page.evaluate("window.click").items()}
    labels = page.request.get(f"{page.url.split('?')[0]}api/labels").json()
    assert labels["corrections"] == number + 1, labels["corrections"]
    return {
        "total": times["painted"] - times["key"],
        "ask": times["asked"] - times["key"],
        "solve": labels["seconds"],
        "server": times["first"] - times["asked"] - labels["seconds"],
        "receive": times["answer"] - times["first"],
        "fill": times["shown"] - times["answer"],
        "paint": times["painted"] - times["shown"],
    }


def measure(chromium: Browser, n: int, clicks: int) -> dict[str, Any]:
    """The figures of one size: start, and clicks."""
    file, folder = pictures(n)
    work = FILES / f"page-{n}.work"
    shutil.rmtree(work, ignore_errors=True)
    start = {}
    with served(file, "--images", folder, "--work", work) as address:
        warm = chromium.new_context(viewport=WINDOW)
        page = warm.new_page()
        page.goto(address)  # until it is labelled; the start of the server is another matter
        page.locator(LABELLED).wait_for(timeout=PATIENCE)
        page.close()
        shutil.rmtree(work / "thumbnails", ignore_errors=True)
        for name in ("first", "again"):
            context = chromium.new_context(viewport=WINDOW)
            page, start[name] = open_page(context, address)
            if name == "first":
                context.close()
        click(page, 0)  # warms up
        found = [click(page, number) for number in range(1, clicks + 1)]
    return {"start": start, "clicks": found}


def quantiles(clicks: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Median and 90 % quantile of each part, in seconds."""
    return {part: tuple(np.quantile([each[part] for each in clicks], [0.5, 0.9])) for part in ("total", *PARTS)}


def table(n: int, found: Mapping[str, Any]) -> str:
    """The figures in ms, as Markdown."""
    parts = quantiles(found["clicks"])
    lines = [f"{n:,} images × {CLASSES} classes, {len(found['clicks'])} clicks; ms", ""]
    lines += ["| | total | " + " | ".join(PARTS) + " |", "|---|" + "---|" * (len(PARTS) + 1)]
    for row, name in enumerate(("median", "90 %")):
        lines.append(f"| {name} | " + " | ".join(f"{1e3 * parts[part][row]:.0f}" for part in ("total", *PARTS)) + " |")
    lines.append("")
    for name, times in found["start"].items():
        lines.append(f"start, {name}: {1e3 * times['some']:.0f} ms; all in sight {1e3 * times['all']:.0f} ms")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(AIMS))
    parser.add_argument("--clicks", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1, help="a busy machine needs several: the best counts")
    parser.add_argument("--out", type=Path, help="all figures, as JSON")
    given = parser.parse_args()
    say(sentence(describe()))
    kept: dict[str, list[dict[str, Any]]] = {}
    with browser() as chromium:
        for _ in range(given.rounds):
            for n in given.sizes:
                kept.setdefault(str(n), []).append(measure(chromium, n, given.clicks))
                print(table(n, kept[str(n)][-1]) + "\n", flush=True)
    for n in given.sizes:
        total = min(quantiles(found["clicks"])["total"][0] for found in kept[str(n)])
        start = min(found["start"]["first"]["some"] for found in kept[str(n)])
        aim = AIMS.get(n)
        print(f"{n:,}: best median {1e3 * total:.0f} ms" + (f" (aim {1e3 * aim:.0f})" if aim else ""), end="; ")
        print(f"first paint {1e3 * start:.0f} ms (aim {1e3 * START_AIM:.0f})")
    if given.out:
        given.out.write_text(json.dumps({"machine": describe(), "runs": kept}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
