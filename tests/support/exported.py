"""Predictions with paths and names that are hard to write, and exports as Label Studio makes them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import kedge
from cases import simulated
from kedge import FeatureSet, Predictions

NAMES = ("cat", "dog & <fox>", 'say "hi"', "=sum", "NA", "ölf")
PATHS = (*(f"a b/{number}.jpg" for number in range(8)), "b/0.jpg", "100%/x+y&z.png", "ü#?.jpg", "\udcff.jpg")


def predictions(names: tuple[str, ...] = NAMES, paths: tuple[str, ...] | None = PATHS, **given: Any) -> Predictions:
    """Labels of simulated features; `given` is what `kedge.adapt` takes."""
    x, t = simulated(len(PATHS), len(names), 16, noise=1.0)
    features = FeatureSet.from_arrays(x.float(), t.float(), class_names=names, paths=paths, logit_scale=20.0)
    return Predictions(features, kedge.adapt(features, method="stata", **given))


def annotation(choice: str, updated: str = "2026-01-01T10:00:00.000000Z", **more: Any) -> dict[str, Any]:
    """One annotation with all that Label Studio writes into it."""
    region = {"id": "x1", "from_name": "label", "to_name": "image", "type": "choices", "origin": "manual"}
    return {
        "id": 7,
        "completed_by": 1,
        "result": [{**region, "value": {"choices": [choice]}}],
        "was_cancelled": False,
        "ground_truth": False,
        "created_at": "2026-01-01T09:00:00.000000Z",
        "updated_at": updated,
        "draft_created_at": None,
        "lead_time": 2.5,
        "prediction": {},
        "result_count": 0,
        "unique_id": "0000",
        "task": 1,
        "project": 1,
        **more,
    }


def export(file: Path, said: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The tasks of a file that kedge wrote, exported with annotations: by the end of the image's URL."""
    tasks = json.loads(file.read_text(encoding="utf-8"))
    exported = []
    for number, task in enumerate(copy.deepcopy(tasks), start=101):
        made = next((made for end, made in said.items() if task["data"]["image"].endswith(end)), None)
        if made is not None:  # Label Studio exports tasks that have annotations
            exported.append({"id": number, "predictions": [], "drafts": [], **task, "annotations": made, "meta": {}})
    return exported
