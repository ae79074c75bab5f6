"""The page in a real browser, as a person uses it: Chromium, driven by Playwright, and `kedge serve` as a process.

The person knows the true class of every picture (its folder) and nothing else. What the page shows is compared with
what the server says, and what the exports say with both. Nothing waits for a time, everything for a state.
"""

from __future__ import annotations

import csv
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Route, expect, sync_playwright

from command import run
from page_tools import pictures
from server_process import Server, serving

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
WINDOW = {"width": 1400, "height": 3000}  # high: all tiles are in the page
SHOWN = ("apple", "cat", "chili pepper", "church", "dolphin", "horse", "lemon", "pear", "tomato", "whale")
FORGOTTEN = "church"  # no class at the start
LURES = ("camel", "cherries", "circus tent", "crown", "fish", "fountain", "purse", "rooster", "strawberry", "tornado")
ABSENT = "strawberry"
NAMES = sorted({*SHOWN, *LURES} - {FORGOTTEN})
EACH = 12
NONE = "none of these"

# Notes which tiles flash: a ring is there for too short a time to wait for it.
NOTE_RINGS = """
window.flashed = new Set();
new MutationObserver((seen) => {
  for (const { addedNodes } of seen)
    for (const node of addedNodes)
      if (node.classList?.contains("ring")) window.flashed.add(Number(node.parentElement.dataset.image));
}).observe(document, { childList: true, subtree: true });
"""
READ_TILES = """() => [...document.querySelectorAll(".tile")].map((tile) => ({
  image: Number(tile.dataset.image), path: tile.title,
  label: tile.querySelector(".label").textContent, number: tile.querySelector(".number").textContent,
  known: tile.classList.contains("known"), dimmed: tile.classList.contains("dimmed") }))"""

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"
)
expect.set_options(timeout=60_000)  # ms; a busy machine is slow


@dataclass(frozen=True)
class Tile:
    """What a tile shows."""

    image: int
    path: str
    label: str
    number: str
    known: bool
    dimmed: bool

    @property
    def truth(self) -> str:
        return self.path.split("/")[0]


class Tab:
    """One tab. Whatever goes wrong in it is in `problems`."""

    def __init__(self, context: BrowserContext, server: Server) -> None:
        self.problems: list[str] = []
        self.page = context.new_page()
        self.page.add_init_script(NOTE_RINGS)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._said)
        self.page.on("request", self._asked)
        self.host = f"http://127.0.0.1:{server.port}/"
        self.page.goto(server.address)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):  # also what the content security policy forbids
            self.problems.append(message.text)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(self.host):
            self.problems.append("asked for " + request.url)

    def by_id(self, name: str) -> Locator:
        return self.page.get_by_test_id(name)

    def tile(self, image: int) -> Locator:
        return self.page.locator(f'.tile[data-image="{image}"]')

    def class_row(self, name: str) -> Locator:
        title = self.page.get_by_text(name, exact=True).and_(self.page.locator(".class-title"))
        return self.by_id("class-row").filter(has=title)

    def tiles(self) -> list[Tile]:
        """All tiles, in the order of the grid."""
        return [Tile(**each) for each in self.page.evaluate(READ_TILES)]

    def labels(self) -> dict[str, str]:
        """The label of each image, by path, as the page shows it."""
        return {each.path: each.label for each in self.tiles()}

    def ask(self, path: str) -> Any:
        return self.page.request.get(f"{self.host}api/{path}").json()

    def labelled(self) -> None:
        """Wait for the first labels."""
        expect(self.page.locator("#level")).to_be_visible()

    def corrected(self, number: int) -> None:
        """Wait until the page counts so many corrections."""
        words = f"your {number} correction{'s' if number > 1 else ''} changed"
        expect(self.by_id("corrections")).to_contain_text(words)

    def wrong(self) -> Tile:
        """The first image, of those most worth a look, with a wrong label that some class would put right."""
        return next(each for each in self.tiles() if each.truth in NAMES and each.label != each.truth)

    def key(self, image: int, name: str) -> int:
        """The key, 1 to 9, that gives an image this label."""
        names = {each["id"]: each["name"] for each in self.ask("labels")["classes"]}
        return 1 + [names[each["id"]] for each in self.ask(f"images/{image}")["top"]].index(name)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport=WINDOW, accept_downloads=True)
    yield made
    made.close()


def by_click(tab: Tab, tile: Tile) -> None:
    tab.tile(tile.image).click()
    tab.by_id("picker-option").filter(has_text=re.compile(rf"\d{tile.truth}")).click()


def by_key(tab: Tab, tile: Tile) -> None:
    key = tab.key(tile.image, tile.truth)
    tab.tile(tile.image).focus()
    expect(tab.by_id("hints").locator(".hint").nth(key - 1)).to_have_text(f"{key}{tile.truth}")
    tab.page.keyboard.press(str(key))


def by_search(tab: Tab, tile: Tile) -> None:
    tab.tile(tile.image).click()
    tab.by_id("picker-search").fill(tile.truth)
    expect(tab.by_id("picker-option")).to_have_text([tile.truth])
    tab.page.keyboard.press("Enter")


def by_keyboard_alone(tab: Tab, tile: Tile) -> None:
    """On a page just opened: to the grid, to the image, into the picker."""
    focus = "document.activeElement.dataset.image"
    tab.page.keyboard.press("Tab")
    tab.page.keyboard.press("Enter")  # skip to the images
    place = [each.image for each in tab.tiles()].index(tile.image)
    columns = int(tab.by_id("grid").get_attribute("aria-colcount") or 0)
    for key, times in (("ArrowDown", place // columns), ("ArrowRight", place % columns)):
        for _ in range(times):
            tab.page.keyboard.press(key)
    assert tab.page.evaluate(focus) == str(tile.image)
    tab.page.keyboard.press("Enter")
    key = tab.key(tile.image, tile.truth)
    expect(tab.by_id("picker-option").nth(key - 1)).to_contain_text(tile.truth)
    tab.page.keyboard.press(str(key))
    expect(tab.by_id("picker")).to_have_count(0)
    assert tab.page.evaluate(focus) == str(tile.image)  # the person goes on where they were


def correct(tab: Tab, way: Callable[[Tab, Tile], None], number: int) -> set[int]:
    """Correct an image: it is labelled at once, others follow, flash and are counted. Returns the others."""
    before, tile = tab.ask("labels"), tab.wrong()
    tab.page.evaluate("window.flashed.clear()")
    way(tab, tile)
    tab.corrected(number)
    changed = differing(before, tab.ask("labels"))
    expect(tab.by_id("toast")).to_contain_text(f"1 correction changed {len(changed)} other label")
    assert set(tab.page.evaluate("[...window.flashed]")) == changed
    now = next(each for each in tab.tiles() if each.image == tile.image)
    assert (now.label, now.number, now.known) == (tile.truth, "yours", True)
    return changed


def differing(before: Any, after: Any) -> set[int]:
    """Images whose label is another, without those that the person gave."""
    known = after["columns"]["known"]
    pairs = zip(before["columns"]["label"], after["columns"]["label"], strict=True)
    return {i for i, (one, two) in enumerate(pairs) if one != two and known[i] == -1}


def exported(tab: Tab, name: str, file: Path) -> list[dict[str, str]]:
    """The rows of an export, downloaded by the menu to a file."""
    tab.by_id("export-menu").click()
    with tab.page.expect_download() as started:
        tab.by_id(name).click()
    started.value.save_as(file)
    tab.page.keyboard.press("Escape")
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def test_a_person_s_way(context: BrowserContext, tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos", EACH, shown=SHOWN)
    options = (str(photos), "--classes", ",".join(NAMES), "--encoder", "tiny", "--workers", "0")
    with serving(*options) as server:
        tab = Tab(context, server)
        tab.labelled()
        expect(tab.by_id("tile")).to_have_count(len(SHOWN) * EACH)
        start = tab.ask("labels")

        # Five corrections, in four ways
        ways = (by_keyboard_alone, by_click, by_key, by_search, by_click)
        changed = [correct(tab, way, number) for number, way in enumerate(ways, start=1)]
        assert any(changed)
        five = tab.labels()
        others = differing(start, tab.ask("labels"))
        expect(tab.by_id("corrections")).to_have_text(f"your 5 corrections changed {len(others)} others")
        assert len(others) > 1

        # Undo and redo
        tab.by_id("undo").click()
        tab.corrected(4)
        four = tab.labels()
        assert four != five
        tab.page.keyboard.press("Shift+Z")
        tab.corrected(5)
        assert tab.labels() == five

        # None of these
        stranger = next(each for each in tab.tiles() if each.truth == FORGOTTEN)
        tab.tile(stranger.image).focus()
        tab.page.keyboard.press("n")
        tab.corrected(6)
        assert tab.labels()[stranger.path] == NONE

        # A class that is not here
        assert ABSENT in tab.labels().values()
        tab.class_row(ABSENT).get_by_test_id("class-here").uncheck()
        expect(tab.by_id("toast")).to_contain_text(f"“{ABSENT}” is not here")
        assert ABSENT not in tab.labels().values()

        # The limit
        limit, text = 0.9, tab.by_id("accept-text")
        before = text.text_content()
        tab.by_id("accept-slider").fill(str(limit))
        columns = tab.ask("labels")["columns"]
        shares = [1.0 if k >= 0 else p for k, p in zip(columns["known"], columns["probability"], strict=True)]
        accepted = [p for p, label in zip(shares, columns["label"], strict=True) if label >= 0 and p >= limit]
        expect(text).to_contain_text(f"accepts {len(accepted)} of 120, about {round(sum(accepted))} right")
        assert text.text_content() != before
        assert sum(each.dimmed for each in tab.tiles()) == 120 - len(accepted) - 1  # what was said is not dimmed

        # Two tabs agree
        second = Tab(context, server)
        second.corrected(6)
        assert second.labels() == tab.labels()
        right = next(each for each in second.tiles() if each.label == each.truth and not each.known)
        second.tile(right.image).focus()
        second.page.keyboard.press("y")
        second.corrected(7)
        tab.corrected(7)
        assert second.labels() == tab.labels()

        # A class that was forgotten
        without = tab.labels()
        tab.by_id("add-class").click()
        tab.by_id("add-class-name").fill(FORGOTTEN)
        tab.by_id("add-class-submit").click()
        expect(tab.by_id("toast")).to_contain_text(f"“{FORGOTTEN}” is a class now")
        last = tab.labels()
        assert sum(label == FORGOTTEN for label in last.values()) > EACH / 2
        counted = tab.by_id("corrections").text_content()
        assert tab.problems == second.problems == []
        second.page.close()
        server.end(signal.SIGKILL)
        expect(tab.by_id("banner-lost")).to_be_visible()

    with serving(str(photos), "--port", str(server.port), "--token", server.token) as server:
        # The open page goes on, and so does one that is opened now
        expect(tab.by_id("banner-lost")).to_have_count(0)
        tab.problems.clear()
        tab.page.reload()
        tab.corrected(7)
        assert tab.labels() == last
        expect(tab.by_id("corrections")).to_have_text(str(counted))
        expect(tab.class_row(ABSENT).get_by_test_id("class-here")).not_to_be_checked()
        expect(tab.class_row(FORGOTTEN).get_by_test_id("class-here")).to_be_checked()

        # What is taken away is what the page shows
        rows = exported(tab, "export-labels-csv", tmp_path / "labels.csv")
        assert {row["image"]: row["label"] for row in rows} == last
        rows = exported(tab, "export-known", tmp_path / "known.csv")
        said = {each.path: each.label for each in tab.tiles() if each.known}
        assert {row["image"]: row["label"].replace("none", NONE) for row in rows} == said
        assert len(said) == 7

        # And kedge adapt says the same; its features know no added class
        tab.by_id("undo").click()
        expect(tab.by_id("toast")).to_contain_text("Undone")
        assert tab.labels() == without
        features = tmp_path / "photos.kedge" / "features.safetensors"
        ran = run("adapt", features, "--known", tmp_path / "known.csv", "--absent", ABSENT, "--quiet")
        assert ran.code == 0, ran.err
        assert {row["image"]: row["label"] for row in csv.DictReader(ran.out.splitlines())} == without
        assert tab.problems == []


def test_the_demo(context: BrowserContext, tmp_path: Path) -> None:
    with serving("--demo", "--work", str(tmp_path / "demo")) as server:
        tab = Tab(context, server)
        expect(tab.by_id("progress")).to_contain_text(re.compile(r"Encoding images: [\d,]+ of 400"))
        expect(tab.by_id("progress")).to_contain_text("images/s")
        expect(tab.page.locator(".tile.loaded .label:not(:empty)").nth(10)).to_be_visible()
        expect(tab.by_id("progress")).to_be_visible()  # the grid fills while images are encoded
        expect(tab.by_id("undo")).to_be_disabled()
        tab.labelled()
        expect(tab.by_id("progress")).to_be_hidden()
        expect(tab.by_id("measured")).to_have_text(re.compile(r"\d\d\.\d %"))
        tab.tile(tab.tiles()[0].image).click()
        tab.page.keyboard.press("2")
        tab.corrected(1)
        assert tab.problems == []


def test_a_server_that_is_gone_and_one_that_is_new(context: BrowserContext, tmp_path: Path) -> None:
    photos = str(pictures(tmp_path / "photos", each=2))
    with serving(photos, "--classes", ", ".join(NAMES), "--encoder", "tiny") as server:
        tab = Tab(context, server)
        tab.labelled()
        expect(tab.by_id("expected")).to_be_visible()
        first = tab.tiles()[0].image
        server.process.kill()
        server.process.wait()
        expect(tab.by_id("banner-lost")).to_contain_text("start it again")
        for key in ("y", "1"):  # a click that is lost is not passed over in silence
            tab.tile(first).focus()
            tab.page.keyboard.press(key)
            expect(tab.by_id("toast")).to_contain_text("This was not saved")
            tab.by_id("toast").get_by_label("Close").click()
        expect(tab.page.locator(".tile.known, .tile.waiting")).to_have_count(0)
    with serving(photos, "--port", str(server.port)) as again:
        expect(tab.by_id("banner-address")).to_contain_text("Open the address that it printed")
        other = Tab(context, again)  # gives the browser the new token
        other.labelled()
        tab.page.reload()
        tab.labelled()
        expect(tab.by_id("banner-address")).to_have_count(0)


def test_no_share_of_right_labels_beside_do_not_use(context: BrowserContext, tmp_path: Path) -> None:
    def doubted(route: Route) -> None:
        labels = route.fetch().json()
        if labels["verdict"]:
            labels["verdict"]["level"] = "do not use"
        route.fulfill(json=labels)

    with serving(
        str(pictures(tmp_path / "photos", each=2)), "--classes", ", ".join(NAMES), "--encoder", "tiny"
    ) as server:
        context.route("**/api/labels", doubted)
        tab = Tab(context, server)
        tab.labelled()
        expect(tab.page.locator("#level")).to_have_text("do not use")
        expect(tab.by_id("accept-text")).to_have_text(re.compile(r"accepts \d+ of \d+$"))
        expect(tab.by_id("expected")).to_be_hidden()
