"""Style, palette and layout of all figures, and their export as SVG and PNG. No pyplot.

A figure consists of small panels that the page puts side by side, or below each other on a phone. On the page colours
are CSS variables, so that figures follow light and dark mode; in files they are the light ones.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray

from .scores import ZERO_SHOT, Group

INK, MUTED, GRID, GREY = "#1b1f24", "#5b646e", "#d4d9df", "#7d8590"
# Colours of methods (light, dark), safe for colour-blind readers: Okabe and Ito's, and two of Tol's.
PALETTE = (
    ("#0072b2", "#4aa8e8"),
    ("#d55e00", "#ee7a24"),
    ("#009e73", "#22b98d"),
    ("#cc79a7", "#dd8fba"),
    ("#e69f00", "#f0b32e"),
    ("#882255", "#c2608f"),
    ("#56b4e9", "#86cbf3"),
    ("#999933", "#b9b950"),
)
MARKERS, DASHES, HATCHES = "osD^", ("-", "--", "-.", ":"), ("", "///", "...", "xxx")  # for more methods than colours
WIDTH = 4.1  # of a panel, in inches; font sizes fit it
PNG_DPI = 200
MOST_PIXELS = 256  # per side of an image inside a figure
_STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica", "sans-serif"],
    "font.size": 9.5,
    "text.color": INK,
    "text.parse_math": False,  # a dataset's name may contain $
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "axes.formatter.use_mathtext": False,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.constrained_layout.h_pad": 0.08,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",  # keep text as text: small, searchable, in the font of the page
    "svg.hashsalt": "kedge",  # the same figure gives the same bytes
}
_CSS = {INK: "currentColor", MUTED: "var(--muted)", GRID: "var(--grid)", GREY: "var(--zero)"} | {
    light: f"var(--m{number})" for number, (light, _) in enumerate(PALETTE)
}


Rows = list[dict[str, Any]]  # the data of a figure, written as CSV


@dataclass(frozen=True)
class Look:
    """How a method is drawn in every figure."""

    colour: str
    marker: str = "o"
    dash: str = "-"
    hatch: str = ""


Looks = Callable[[str], Look]  # of a label


@dataclass(frozen=True)
class Panel:
    """One panel: the name of its files, its content in words (for screen readers), and the drawing."""

    name: str
    says: str
    figure: Figure


@dataclass(frozen=True)
class Picture:
    """A figure: title, caption, panels, and their data."""

    key: str
    title: str
    caption: str
    panels: list[Panel]
    rows: Rows


@contextmanager
def style() -> Iterator[None]:
    """Use our matplotlib style inside the block, whatever the user's own settings."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing", category=UserWarning
        )  # names may be in any script
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)  # type: ignore[arg-type]  # newer stubs list every name
        yield


def look(label: str, colours: dict[str, int]) -> Look:
    """How to draw a method; zero-shot is grey."""
    if label == ZERO_SHOT:
        return Look(GREY, dash="--")
    turn, number = divmod(colours[label], len(PALETTE))
    turn = min(turn, len(MARKERS) - 1)
    return Look(PALETTE[number][0], MARKERS[turn], DASHES[turn], HATCHES[turn])


def source(group: Group, what: str = "") -> str:
    """The subtitle of a panel: encoder, and SIMULATED, so that a copied panel still says so."""
    encoder = "" if group.encoder == "unknown" else group.encoder
    return " · ".join(filter(None, [what, encoder, "SIMULATED" if group.simulated else ""]))


def canvas(height: float, title: str, below: str) -> tuple[Figure, Axes]:
    """An empty panel with a bold title and a subtitle."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    headline(figure, title, below)
    return figure, figure.add_subplot()


def headline(figure: Figure, title: str, below: str) -> None:
    """Title and subtitle at the left edge of the panel."""
    figure.suptitle(f"{shortened(title, 42)}\n", x=0.02, ha="left", fontsize=10.5, weight="bold")  # a line for `below`
    under = figure.text(0.02, 1, shortened(below, 58), color=MUTED, fontsize=8.5, va="top")
    under.set_transform(figure.transFigure + ScaledTranslation(0, -0.3, figure.dpi_scale_trans))
    under.set_in_layout(False)


def label_lines(axes: Axes, ends: Sequence[tuple[float, str, str]], gap: float) -> None:
    """Write names (height, text, colour) at the right end of lines, at least `gap` (a share of the axis) apart."""
    low, high = axes.get_ylim()
    heights = spread([end for end, _, _ in ends], gap * (high - low))
    for height, (_, text, colour) in zip(heights, ends, strict=True):
        axes.text(
            1.02,
            height,
            shortened(text, 24),
            color=colour,
            fontsize=8.5,
            va="center",
            transform=axes.get_yaxis_transform(),
        )


def spread(values: Sequence[float], gap: float) -> list[float]:
    """The closest values that are at least `gap` apart, in the same order: isotonic regression of value − rank·gap."""
    order = sorted(range(len(values)), key=values.__getitem__)
    blocks: list[tuple[float, int]] = []  # (sum, size); their means must rise
    for rank, index in enumerate(order):
        total, size = values[index] - rank * gap, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / size:
            before = blocks.pop()
            total, size = total + before[0], size + before[1]
        blocks.append((total, size))
    means = [total / size for total, size in blocks for _ in range(size)]
    moved = dict(zip(order, (mean + rank * gap for rank, mean in enumerate(means)), strict=True))
    return [moved[index] for index in range(len(values))]


def tinted(shares: NDArray[Any], colour: str) -> NDArray[Any]:
    """Shares from 0 to 1 (rows×columns) as an image (rows×columns×4): 0 is transparent, 1 the full colour."""
    rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    image = np.empty((*shares.shape, 4), dtype=np.uint8)
    image[..., :3] = rgb
    image[..., 3] = np.round(255 * np.clip(shares, 0, 1))
    return image


def coarser(values: NDArray[Any], axis: int, merged: Callable[..., Any] = np.mean) -> NDArray[Any]:
    """Merge neighbours along an axis until at most MOST_PIXELS are left."""
    if values.shape[axis] <= MOST_PIXELS:
        return values
    return np.stack([merged(part, axis) for part in np.array_split(values, MOST_PIXELS, axis)], axis)


def shortened(text: str, length: int) -> str:
    """The text cut to `length` characters, with … at the end if it was longer."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def as_png(figure: Figure) -> bytes:
    """PNG on white, reproducible to the byte. Call `as_svg` first: it computes the layout."""
    buffer = BytesIO()
    figure.set_dpi(PNG_DPI)
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def as_svg(figure: Figure) -> str:
    """SVG without a background, reproducible to the byte."""
    buffer = BytesIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    figure.set_layout_engine("none")
    return buffer.getvalue().decode()


def on_white(svg: str) -> str:
    """The SVG with a white background, for a file."""
    return re.sub(r"(<svg [^>]*>)", r'\1<rect width="100%" height="100%" fill="white"/>', svg, count=1)


def inlined(svg: str, name: str) -> str:
    """The SVG for the page: no prolog, ids prefixed with `name`, colours as CSS variables."""
    svg = svg[svg.index("<svg ") :].strip()
    svg = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", lambda m: f"{m[1]}: {_CSS.get(m[2], m[2])}", svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    head = re.match(r"<svg [^>]*>", svg)
    box = re.search(r'viewBox="[^"]*"', svg)
    assert head
    assert box
    return f'<svg {box[0]} aria-hidden="true" focusable="false">' + svg[head.end() :]
