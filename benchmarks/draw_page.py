"""The pictures of the page in the documentation: docs/page.png, and docs/page.webp, where corrections spread.

    python benchmarks/draw_page.py [--out docs]

Both are of `kedge serve --demo`, as it is. The person in them knows the true class of a picture: its folder's name.
"""

from __future__ import annotations

import argparse
import base64
import io
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from browsing import LABELLED, PATIENCE, browser, served
from measuring import ROOT, say
from PIL import Image, ImageDraw
from playwright.sync_api import Browser, Locator, Page

STILL, FILM = {"width": 1400, "height": 900}, {"width": 1120, "height": 700}
WIDTH = 900  # of the film, in pixels
RATE = 12  # frames per second
TILE = 150  # px, of the still
CALLED, TRUE = "lemon", "pineapple"  # what kedge calls pictures of which class in the demo
BEFORE = ("slice of cake", "tractor")  # corrected before, in the still
ARROW = ((0, 0), (0, 17), (4, 13), (7, 20), (10, 19), (7, 12), (12, 12))
AWAY = (620.0, 690.0)  # where the pointer rests


def opened(chromium: Browser, address: str, window: dict[str, int]) -> Page:
    """The demo, labelled, in a window of this size."""
    page = chromium.new_context(viewport=window, color_scheme="light").new_page()
    page.goto(address)
    page.locator(LABELLED).wait_for(timeout=PATIENCE)
    page.locator(".tile.loaded").nth(15).wait_for(timeout=PATIENCE)
    page.wait_for_timeout(500)
    return page


def wrong(page: Page, among: Sequence[str]) -> tuple[Locator, str]:
    """The first picture in the grid of one of these classes that has another label, and its class."""
    for tile in page.locator(".tile").all():
        truth = str(tile.get_attribute("title")).split("/")[0]
        if truth in among and tile.locator(".label").text_content() != truth:
            return tile, truth
    raise RuntimeError(f"no picture of {among} in sight has a wrong label")


def row(page: Page, name: str) -> Locator:
    """A class in the list."""
    return page.get_by_test_id("class-row").filter(has=page.locator(".class-title", has_text=name)).first


def counted(page: Page, number: int) -> None:
    """Wait until so many corrections are counted."""
    page.locator("#corrections", has_text=f"{number} correction").wait_for()


def still(page: Page, file: Path) -> None:
    """A few corrections; the last is among what kedge calls lemons, which are pineapples."""
    page.locator("#size").fill(str(TILE))
    for number, name in enumerate(BEFORE, start=1):
        tile, _ = wrong(page, [name])
        tile.click()
        page.get_by_test_id("picker-search").fill(name)
        page.keyboard.press("Enter")
        counted(page, number)
    row(page, CALLED).locator(".class-name").click()
    page.locator(".chip").wait_for()
    tile, truth = wrong(page, [TRUE])
    tile.click()
    page.get_by_test_id("picker-option").filter(has_text=truth).click()
    counted(page, len(BEFORE) + 1)
    page.wait_for_timeout(500)  # numbers run to their new values; the rings are there for longer
    page.screenshot(path=file)


class Film:
    """Records a page, with the pointer, which the browser leaves out."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.frames: list[tuple[float, bytes]] = []
        self.pointer: list[tuple[float, float, float]] = [(0.0, *AWAY)]
        self.session = page.context.new_cdp_session(page)
        self.session.on("Page.screencastFrame", self._seen)
        self.session.send("Page.startScreencast", {"format": "png"})

    def _seen(self, frame: dict[str, object]) -> None:
        self.frames.append((time.time(), base64.b64decode(str(frame["data"]))))
        self.session.send("Page.screencastFrameAck", {"sessionId": frame["sessionId"]})

    def wait(self, seconds: float) -> None:
        self.page.wait_for_timeout(1e3 * seconds)

    def go(self, target: Locator, seconds: float = 0.25) -> None:
        """Move the pointer to an element."""
        box = target.bounding_box()
        assert box
        goal = box["x"] + box["width"] / 2, box["y"] + min(box["height"] / 2, 60)
        _, *start = self.pointer[-1]
        steps = round(seconds * RATE)
        for step in range(1, steps + 1):
            share = step / steps
            eased = share * share * (3 - 2 * share)
            x, y = (a + (b - a) * eased for a, b in zip(start, goal, strict=True))
            self.page.mouse.move(x, y)
            self.pointer.append((time.time(), x, y))
            self.wait(seconds / steps)

    def click(self, target: Locator) -> None:
        self.go(target)
        self.page.mouse.down()
        self.page.mouse.up()

    def pictures(self) -> Iterator[Image.Image]:
        """The frames at a steady rate."""
        self.session.send("Page.stopScreencast")
        self.session.detach()
        start, end = self.pointer[1][0] - 0.5, time.time()
        for number in itertools.count():
            now = start + number / RATE
            if now > end:
                return
            data = next((data for at, data in reversed(self.frames) if at <= now), self.frames[0][1])
            _, x, y = next(each for each in reversed(self.pointer) if each[0] <= now)
            frame = Image.open(io.BytesIO(data)).convert("RGB")
            ImageDraw.Draw(frame).polygon([(x + a, y + b) for a, b in ARROW], fill="black", outline="white", width=1)
            yield frame.resize((WIDTH, round(WIDTH * frame.height / frame.width)), Image.Resampling.LANCZOS)


def film(page: Page, file: Path) -> None:
    """Two corrections among the lemons, then the class is unticked."""
    film = Film(page)
    film.wait(0.3)
    film.click(row(page, CALLED).locator(".class-name"))
    film.wait(0.3)
    for number in (1, 2):
        tile, truth = wrong(page, [TRUE])
        film.click(tile)
        option = page.get_by_test_id("picker-option").filter(has_text=truth)
        option.wait_for()
        film.click(option)
        counted(page, number)
        film.wait(0.7)
        if number == 1:
            film.click(page.get_by_test_id("refresh-order"))
            film.wait(0.2)
    film.click(row(page, CALLED).get_by_test_id("class-here"))
    page.locator(".toast", has_text="not here").wait_for()
    film.wait(0.6)
    first, *rest = film.pictures()
    say(f"{1 + len(rest)} frames, {(1 + len(rest)) / RATE:.1f} s")
    durations = [round(1000 / RATE)] * len(rest) + [1200]
    first.save(file, save_all=True, append_images=rest, duration=durations, loop=0, quality=70, method=4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    out = parser.parse_args().out
    with browser() as chromium, tempfile.TemporaryDirectory() as place:
        for name, draw, window in (("page.png", still, STILL), ("page.webp", film, FILM)):
            with served("--demo", "--work", Path(place) / name) as address:
                draw(opened(chromium, address, window), out / name)
            say(f"{out / name}: {(out / name).stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
