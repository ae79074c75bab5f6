"""The site builds without a warning, runs its examples, reaches every page, and loads nothing from elsewhere."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import kedge

ROOT = Path(__file__).resolve().parents[1]
if not (ROOT / "docs" / "conf.py").exists():
    pytest.skip("the folder docs is no part of the source archive", allow_module_level=True)
for package in ("sphinx", "myst_parser", "pydata_sphinx_theme", "sphinx_copybutton", "sphinx_design", "sphinx_gallery"):
    pytest.importorskip(package, reason="the site needs the extra `docs`")
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
command_line, docstrings = map(import_module, ("command_line", "docstrings"))

GENERATED = ("genindex.html", "search.html", "py-modindex.html")  # pages of the theme, reached by its own buttons


class Links(HTMLParser):
    """What a page loads, where its links go, and the places in it that a link can name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.goes: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.places.update(filter(None, (found.get("id"), found.get("name") if tag == "a" else None)))
        if tag == "a" and "href" in found:
            self.goes.append(found["href"])
        elif tag == "link" and found.get("rel") not in ("canonical", "index", "search", "next", "prev"):
            self.loads.append(found["href"])
        self.loads += [found[name] for name in ("src", "poster", "data") if found.get(name)]
        self.loads += [
            each.split()[0] for each in found.get("srcset", "").split(",") if each.strip()
        ]  # `a.png, b.png 2x`


Pages = dict[Path, Links]


def built(clone: Path) -> Path:
    """The site, built from a copy: the gallery writes its pages beside the sources. Everything else is linked."""
    for path in ROOT.iterdir():
        if path.name in ("docs", "examples"):
            leave = shutil.ignore_patterns("gallery", "__pycache__", "sg_execution_times.rst")
            shutil.copytree(path, clone / path.name, ignore=leave)
        elif path.name not in ("build", ".git", ".venv"):
            (clone / path.name).symlink_to(path)
    before = {path.name for path in clone.iterdir()}
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", "site"],
        cwd=clone, env={**os.environ, "PYTHONPATH": str(Path(kedge.__file__).parents[1])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in clone.iterdir()} == before | {"site"}  # the examples leave nothing behind
    return clone / "site"


def target(page: Path, link: str) -> tuple[Path, str]:
    """The file that a link inside the site goes to, and the place in it."""
    parts = urlsplit(link)
    return (page.parent / unquote(parts.path)).resolve() if parts.path else page, unquote(parts.fragment)


def inside(link: str) -> bool:
    return not urlsplit(link).scheme and not link.startswith("//")


def pages_not_reached(site: Path, pages: Pages) -> set[str]:
    seen, waiting = set(), [site / "index.html"]
    while waiting:
        page = waiting.pop()
        if page in pages and page not in seen:
            seen.add(page)
            waiting += [target(page, link)[0] for link in pages[page].goes if inside(link)]
    return {path.relative_to(site).as_posix() for path in pages.keys() - seen} - set(GENERATED)


def lost_links(site: Path, pages: Pages) -> set[str]:
    lost = set()
    for page, links in pages.items():
        for link in filter(inside, (*links.goes, *links.loads)):
            path, place = target(page, link)
            if not path.is_file() or (place and path in pages and place not in pages[path].places):
                lost.add(f"{page.relative_to(site)}: {link}")
    return lost


def loaded_from_elsewhere(site: Path, pages: Pages) -> set[str]:
    loads = {link for links in pages.values() for link in links.loads if not link.startswith("data:")}
    for style in site.rglob("*.css"):
        loads |= {*re.findall(r"(?:url\(|@import(?!\s+url))\s*['\"]?([^'\")\s]+)", style.read_text(encoding="utf-8"))}
    return {link for link in loads if link.startswith(("http:", "https:", "//"))}


def machine_paths(site: Path, pages: Pages) -> set[str]:
    texts = {page.relative_to(site).as_posix(): page.read_text(encoding="utf-8") for page in pages}
    return {name for name, text in texts.items() if str(site.parent) in text or str(ROOT) in text}


def missing_names(site: Path, pages: Pages) -> set[str]:
    public = {f"kedge.{name}" for name in kedge.__all__} - {"kedge.__version__"}
    return public - pages[site / "reference" / "python.html"].places


def missing_commands(site: Path, pages: Pages) -> set[str]:
    page = site / "reference" / "command_line.html"
    text = re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))
    commands = dict(command_line.commands())
    assert {"kedge", "kedge adapt", "kedge ls methods"} <= commands.keys()
    options = {option for command in commands.values() for param in command.params for option in param.opts}
    lost = {option for option in options - {"--help"} if option.startswith("--") and option not in text}
    return lost | ({name.replace(" ", "-") for name in commands} - pages[page].places)


CHECKS = (pages_not_reached, lost_links, loaded_from_elsewhere, machine_paths, missing_names, missing_commands)


def test_the_site(tmp_path: Path) -> None:
    """One test, so that the site is built once however many processes run the tests."""
    site = built(tmp_path)
    own = (path for path in site.rglob("*.html") if "_static" not in path.parts)
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in own}
    assert {check.__name__: wrong for check in CHECKS if (wrong := check(site, pages))} == {}


@pytest.mark.parametrize("name", [*kedge.list_methods(), "calibrated"])
def test_a_methods_page_names_its_settings(name: str) -> None:
    page = f"{name.removesuffix('-online')}.md"  # the two programs of one paper are on one page
    source = (ROOT / "docs" / "methods" / page).read_text(encoding="utf-8")
    settings = [row[0].strip("`") for row in docstrings.fields(kedge.find_method(name))] if name != "calibrated" else []
    assert not [setting for setting in settings if f"`{setting}`" not in source]
    index = (ROOT / "docs" / "methods" / "index.md").read_text(encoding="utf-8")
    assert re.search(rf"\[`{name}(:METHOD)?`\]\({page}\)", index)


def test_docstrings_become_restructured_text() -> None:
    text = "Label *n* images, see `kedge.adapt` and `x`s.\n\na, b: one\n    and more\nnote: none\n\n"
    text += "| k | v |\n|---|---|\n| 1 | `2` |"
    assert docstrings.rest(text, ["a", "b"]) == [
        r"Label \*n\* images, see :py:obj:`kedge.adapt <kedge.adapt>`\  and ``x``\ s.", "",
        "**a, b**", "    one and more note: none", "",
        ".. list-table::", "   :header-rows: 1", "", "   * - k", "     - v", "   * - 1", "     - ``2``\\ ", "",
    ]  # fmt: skip


def test_each_parameter_has_a_line_of_its_own() -> None:
    """`a: one. b: two` would be shown as one parameter; and the reference does not show a module's own docstring."""
    wrong = []
    for name in kedge.__all__:
        thing = getattr(kedge, name)
        parts = [value for part, value in vars(thing).items() if part[0] != "_"] if inspect.isclass(thing) else []
        for part in (thing, *(getattr(part, "__func__", part) for part in parts)):
            text = inspect.getdoc(part) or ""
            names = "|".join(inspect.signature(part).parameters) if callable(part) else ""
            wrong += re.findall(rf"[^\n]\. (?:{names or '$^'})(?:, \w+)*: [^\n]*|[^\n]*module's table[^\n]*", text)
    assert wrong == []


def test_constants_are_not_described_as_their_type() -> None:
    """Autodoc would show what `int` says of itself."""
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    described = re.findall(r"^\.\. auto\w+:: kedge\.(\w+)$", page, re.M)
    assert len(described) > 30
    assert not [name for name in described if not callable(getattr(kedge, name))]


def test_help_becomes_markdown() -> None:
    made = command_line.prose("Use a_b with --out.\n\n\b\nExample: kedge ls\n\n\b\nTable:\n  one  *")
    assert made == "Use a\\_b with `--out`.\n\n```bash\nkedge ls\n```\n\n```text\nTable:\n  one  *\n```"
