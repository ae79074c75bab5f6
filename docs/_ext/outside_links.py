"""Links to files outside docs/ are downloads on the site.

MyST makes them so for every kind of file but Markdown, which it takes for a page that is missing.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

LINK = re.compile(r"\]\((\.\./[^)#\s]+\.md)(?:#[^)\s]*)?\)")


def mark(app: Sphinx, page: str, source: list[str]) -> None:
    """Put `path:` before the target of each link to a Markdown file outside docs/."""
    root = Path(app.srcdir).resolve()
    folder = (root / page).parent

    def marked(link: re.Match[str]) -> str:
        inside = (folder / link[1]).resolve().is_relative_to(root)
        return link[0] if inside else f"](path:{link[1]})"

    source[0] = LINK.sub(marked, source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.connect("source-read", mark)
    return {"parallel_read_safe": True}
