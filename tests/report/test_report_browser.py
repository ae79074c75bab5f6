"""The report in a real browser: headless Chromium, driven by its own protocol over a pipe (no driver, no websocket).

It shows what no look at the HTML can: that the script runs under the page's policy, tables sort when a header is
clicked, pictures have a size, dark mode reaches them, and a phone need not scroll sideways.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from kedge.report import write_report
from report_tools import some_records

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
PATIENCE = 60  # seconds for one answer of the browser
PHONE, SMALL, DESKTOP, WIDE, PAPER = (390, 844), (360, 780), (1400, 900), (2200, 1200), (794, 1123)
TABLE = "#results-1-scenario-1 table"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"
)


class Browser:
    """One page of a browser of our own, with a fresh profile. Collects what goes wrong in `problems`."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()

        def wire() -> None:  # in the child: the protocol is spoken on descriptors 3 and 4
            low, high = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(low, 3)
            os.dup2(high, 4)

        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            close_fds=False,  # Python's own descriptors do not pass to children; 3 and 4 must
            preexec_fn=wire,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer, self._number, self._session = b"", 0, ""
        self._events: list[str] = []
        self.problems: list[str] = []
        self.blocked: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command, wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        return dict(answer["result"])

    def open(self, url: str, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> None:
        """Load a page in a window of this size, and wait until it is there."""
        width, height = size
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._events.clear()
        self.call("Page.navigate", url=url)
        self.wait_until(lambda: "Page.loadEventFired" in self._events)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Listen to the browser until something is so."""
        while not condition():
            self._receive()

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """A real click, with the mouse, on the middle of an element."""
        where = self.run(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
            f"return [b.x + b.width / 2, b.y + b.height / 2]; }})(document.querySelector({json.dumps(selector)}))"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=where[0], y=where[1], button="left", clickCount=1)

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """End the browser that was started here."""
        self._session = ""
        try:
            self.call("Browser.close")
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            os.close(self._to)
            os.close(self._from)

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0, end - time.monotonic()))
            assert ready, f"the browser did not answer within {PATIENCE} s"
            part = os.read(self._from, 1 << 20)
            assert part, "the browser went away"
            self._buffer += part
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        method, params = message.get("method", ""), message.get("params", {})
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
            ("file:", "data:", "about:")
        ):
            self.problems.append("asked the network for " + params["request"]["url"])
        elif method == "Network.loadingFailed" and params.get("blockedReason"):
            self.blocked.append(params["blockedReason"])
        return message


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    long = "a dataset with a name that is much too long for the head of a column on a phone"
    records = some_records()
    more = [dataclasses.replace(r, dataset=f"{long} {i}") for r in records if r.dataset == "birds" for i in range(4)]
    missing = [r for r in more if r.label != "stata beta=soft"]
    return write_report([*records, *missing], tmp_path_factory.mktemp("report") / "report.html").as_uri()


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Browser]:
    """The browser; whatever the test did, nothing may have gone wrong in it."""
    browser.problems.clear()
    yield browser
    assert browser.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [SMALL, DESKTOP, WIDE])
def test_the_page_fits_the_window_and_every_picture_is_seen(
    page: Browser, url: str, size: tuple[int, int], scheme: str
) -> None:
    page.open(url, size, scheme)
    assert page.run("document.documentElement.scrollWidth") <= size[0]
    assert page.run("document.documentElement.clientWidth") <= size[0]  # a phone would zoom out to fit wider content
    assert page.run("innerWidth") == size[0]
    boxes = page.run("[...document.querySelectorAll('[role=img] > svg')].map(e => e.getBoundingClientRect().toJSON())")
    assert len(boxes) > 15
    for box in boxes:
        assert box["width"] > 250
        assert box["height"] > 80
        assert box["left"] >= 0
        assert box["right"] <= size[0]


def test_a_wide_table_scrolls_in_its_own_box(page: Browser, url: str) -> None:
    page.open(url, PHONE)
    moved = page.run("[...document.querySelectorAll('.scroll')].map(e => { e.scrollLeft = 50; return e.scrollLeft; })")
    assert max(moved) == 50
    first = f"document.querySelector({json.dumps(TABLE + ' tbody th')}).getBoundingClientRect().left"
    assert page.run(first) >= 0  # the method's name stays


def test_words_on_a_sheet_can_be_read_on_a_phone(page: Browser, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    Image.new("RGB", (1800, 1500), "white").save(sheet)
    address = write_report(some_records()[:2], tmp_path / "report.html", {"Some pictures": sheet}).as_uri()
    for size in (SMALL, DESKTOP):
        page.open(address, size)
        assert page.run("document.documentElement.scrollWidth") <= size[0]
        assert page.run("document.querySelector('.sheet img').clientWidth") >= 800


def test_a_cue_shows_while_there_is_more_to_the_right(page: Browser, url: str) -> None:
    box = f"document.querySelector({json.dumps(TABLE)}).closest('.scroll')"
    width = f"getComputedStyle({box}.parentElement, '::after').width"  # auto: there is none
    later = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"

    def cue_after(move: str) -> bool:
        page.run(move)
        page.call("Runtime.evaluate", expression=later, awaitPromise=True)
        return bool(page.run(width) != "auto")

    page.open(url, PHONE)
    assert cue_after("0")
    assert not cue_after(f"{box}.scrollLeft = {box}.scrollWidth")
    assert cue_after(f"{box}.scrollLeft = 0")
    page.open(url, WIDE)
    assert page.run(f"{box}.scrollWidth <= {box}.clientWidth")
    assert not cue_after("0")


def test_the_contents_reach_every_section(page: Browser, url: str) -> None:
    page.open(url, WIDE)
    links = page.run("[...document.querySelectorAll('nav a')].map(e => e.getAttribute('href'))")
    sections = page.run("[...document.querySelectorAll('section')].map(e => '#' + e.id)")
    assert set(sections) < set(links)
    for link in links:
        page.run(f"document.querySelector(`nav a[href='{link}']`).click()")
        assert page.run("location.hash") == link
        assert page.run(f"document.querySelector('{link}').checkVisibility()")  # what is folded is opened
        top = page.run(f"document.querySelector('{link}').getBoundingClientRect().top")
        at_end = page.run("scrollY + innerHeight >= document.documentElement.scrollHeight - 1")
        assert abs(top) < 2 or at_end
        beside = page.run("document.querySelector('nav details').getBoundingClientRect().toJSON()")
        assert 0 <= beside["top"] < beside["bottom"] <= WIDE[1]  # it stays in sight


def test_the_contents_are_beside_the_page_if_there_is_room_and_folded_if_not(page: Browser, url: str) -> None:
    boxes = "['nav details', 'main'].map(s => document.querySelector(s).getBoundingClientRect().toJSON())"
    page.open(url, WIDE)
    beside, main = page.run(boxes)
    assert beside["right"] <= main["left"]
    page.open(url, PHONE)
    above, main = page.run(boxes)
    assert above["bottom"] <= main["top"]
    assert above["height"] < 60
    page.click("nav summary")
    assert page.run(boxes)[0]["height"] > 200


def test_a_wide_screen_has_tables_and_figures_side_by_side(page: Browser, url: str) -> None:
    def beside(selector: str) -> bool:
        """Are two of these elements at the same height?"""
        tops = page.run(
            f"[...document.querySelectorAll('{selector}')].map(e => Math.round(e.getBoundingClientRect().top))"
        )
        return len(set(tops)) < len(tops)

    page.open(url, WIDE)
    assert beside("#results-1 .figures > div")
    assert beside("#results-1-harm [role=img]")
    lines = page.run(
        "Math.max(...[...document.querySelectorAll('p, figcaption')].map(e => e.getBoundingClientRect().width))"
    )
    assert lines < 1000  # text stays readable
    page.open(url, PHONE)
    assert not beside("#results-1 .figures > div")


def test_a_click_on_a_header_sorts_the_table(page: Browser, url: str) -> None:
    page.open(url)
    head = f"{TABLE} thead th:nth-child(2)"
    column = f"[...document.querySelectorAll({json.dumps(TABLE + ' tbody tr')})].map(r => r.cells[1].dataset.value)"
    sort = f"document.querySelector({json.dumps(head)}).getAttribute('aria-sort')"
    before = page.run(column)
    known = sorted(float(value) for value in before if value)
    assert len(known) >= 2
    assert "" in before  # a method without an average: last, either way
    assert page.run(sort) is None
    page.click(f"{head} button")
    assert page.run(sort) == "descending"
    assert [float(value) for value in page.run(column) if value] == known[::-1]
    assert page.run(column)[-1] == ""
    page.click(f"{head} button")
    assert page.run(sort) == "ascending"
    assert [float(value) for value in page.run(column) if value] == known
    assert page.run(column)[-1] == ""
    page.click(f"{TABLE} thead th:nth-child(1) button")
    names = page.run(f"[...document.querySelectorAll({json.dumps(TABLE + ' tbody th')})].map(e => e.textContent)")
    assert names == sorted(names)
    assert page.run(sort) is None  # one column is sorted at a time


def test_a_header_can_be_reached_and_pressed_by_keyboard(page: Browser, url: str) -> None:
    page.open(url)
    page.run(f"document.querySelector({json.dumps(TABLE + ' thead th:nth-child(2) button')}).focus()")
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    assert page.run(f"document.querySelector({json.dumps(TABLE)}).querySelectorAll('[aria-sort]').length") == 1


def test_dark_mode_reaches_the_pictures(page: Browser, url: str) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        page.open(url, scheme=scheme)
        seen[scheme] = page.run(
            "['body', 'svg text', 'figure svg'].map(s => { const c = getComputedStyle(document.querySelector(s));"
            "return [c.color, c.fill, c.backgroundColor]; })"
        )
        (ink, _, ground), (_, written, _), _ = seen[scheme]
        assert written == ink != ground
    assert seen["light"][0] != seen["dark"][0]


def test_on_paper_everything_is_open_and_fits(page: Browser, url: str) -> None:
    page.open(url, PAPER)
    shut = "document.querySelectorAll('details:not([open])').length"
    assert page.run(shut) > 0
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run(shut) == 0
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.run("document.documentElement.scrollWidth") <= PAPER[0]


def test_the_page_can_not_be_made_to_fetch(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.blocked.clear()
    browser.run("new Image().src = 'https://example.invalid/x.png'; 0")
    browser.run(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.broken = 1'}))"
    )
    assert browser.run("window.broken") is None
    browser.wait_until(lambda: len(browser.blocked) == 1)
    assert browser.blocked == ["csp"]
