"""Jobs that write files into the folder `out`, and what they wrote, to compare."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from runner import Fault

SMALL_SHARDS = "import kedge.features.shard_maker as maker; maker.SHARD_ROWS = 4"
SMALL_DEMO = """
import kedge.demo as demo, kedge.encoders.tiny as tiny
tiny.IMAGES, demo.VIEWS = Path("few.zip"), 2
demo.QUICK = demo.Size(("very-low",), ("stream-high",), (2, 1), (0, 0))
demo.list_methods = lambda: ("zero-shot", "stata", "kedge")
"""
END = {".html": 8, ".svg": 7, ".png": 8, ".csv": 1}  # bytes at the end of a complete file that are always the same
TEMPORARY = re.compile(r"(^|/)\.(kedge-|tmp)|\.parts/")  # .tmp…: of safetensors
TIMES = re.compile(rb'"seconds(_per_image)?":[^,]*,')


@dataclass(frozen=True)
class Job:
    """A command, with code that runs before it."""

    command: str
    before: str = ""

    def words(self) -> list[str]:
        return self.command.split()


EXTRACT = Job("extract photos --encoder tiny --views 2 --batch-size 2 -o out/x.safetensors", SMALL_SHARDS)
BENCH = Job("bench --grid grid.toml --out out/records")
BENCH_JOBS = Job("bench --grid grid.toml --out out/records --jobs 2")
FEATURES = [
    Job("features convert features.npz out/x.safetensors"),
    Job("features split features.safetensors out/folder --images-per-shard 3"),
    Job("features import embeddings out/folder --text-from features.safetensors"),
]
DEMO = Job("demo --quick --jobs 1 --out out", SMALL_DEMO)
LABELS = Job("adapt folder --label-folder out/labels --out out/labels.csv")
PLAN = Job("plan features.safetensors --scenario very-low --tasks 500 --save out/plan.safetensors --draw out/plan.png")
ADAPT = [
    Job(f"adapt features.safetensors --method stata --out out/labels.{kind}") for kind in ("csv", "json", "parquet")
]
SORT = Job("adapt photos --encoder tiny --sort-into out/sorted --out out/labels.csv")
REPORT = Job("report records -o out/report.html")


def written(out: Path) -> dict[str, bytes]:
    """Content by name of every result in the folder; temporary files are none. Times differ from run to run."""
    found = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.is_file() and not TEMPORARY.search(name):
            content = path.read_bytes()
            if name.startswith("records/"):
                content = TIMES.sub(b"", content)
            elif path.suffix == ".html" or name.startswith("report_figures/"):  # they show times
                content = content[-END[path.suffix] :]
            found[name] = content
    return found


def check_written(found: dict[str, bytes], expected: dict[str, bytes], complete: bool) -> None:
    """Raise Fault if a file differs from the undisturbed run's; or, if `complete`, is missing."""
    for name, content in found.items():
        if name not in expected:
            raise Fault(f"{name} is not written by an undisturbed run")
        if content != expected[name]:
            raise Fault(f"{name} differs from an undisturbed run ({len(content):,} and {len(expected[name]):,} bytes)")
    if complete and len(found) < len(expected):
        raise Fault(f"missing: {sorted(set(expected) - set(found))}")
