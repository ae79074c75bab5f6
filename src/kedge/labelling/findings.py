"""What a person should look at, as rows: the classes found, and the images most worth a look."""

from __future__ import annotations

from typing import Any

from .predictions import Predictions


def class_rows(predictions: Predictions) -> list[dict[str, Any]]:
    """The classes found, most in doubt first: class, expected count, evidence, example image, present (yes)."""
    return [
        {
            "class": found.name,
            "count": round(found.count, 1),
            "evidence": round(found.evidence, 3),
            "example": predictions.image_names[found.example],
            "present": "yes",
        }
        for found in predictions.result.classes
    ]


def review_rows(predictions: Predictions, most: int) -> list[dict[str, Any]]:
    """The first images of the review order: image, label, probability, and why a look is worth it."""
    result, answer = predictions.result, predictions.result.answer
    names, seen = predictions.features.head.class_names, set(answer.given.tolist())
    rows = []
    for image in result.review[:most].tolist():
        runner_up, label = int(result.runner_up[image]), int(answer.labels[image])
        probability = float(result.probs[image, label])
        if label not in seen:  # the order begins with an image of each class
            why = "typical of its class"
        elif runner_up < 0:
            why = "among the least certain"
        else:
            why = f"uncertain: {names[runner_up]} {float(result.probs[image, runner_up]):.2f}"
        seen.add(label)
        row = {"image": predictions.image_names[image], "label": predictions.names[image]}
        rows.append({**row, "probability": round(probability, 3), "why": why})
    return rows
