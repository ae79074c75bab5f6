"""Templates, class names, and the text head they make."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kedge.encoders.templates import read_templates
from kedge.errors import FileError, InputError, SettingError
from kedge.features.text_head import text_head
from kedge.images.class_names import class_names
from kedge.images.datasets import find_dataset


def test_the_papers_templates(shared: Path) -> None:
    with (shared / "reference" / "datasets.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 11
    for row in rows:
        for spelling in (row["name"], row["other_name"], row["name"].upper().replace("_", "-")):
            assert find_dataset(spelling).prompt == row["prompt"]


def test_unknown_dataset() -> None:
    with pytest.raises(SettingError, match=r"unknown dataset 'oxford_pet'; did you mean 'oxford_pets'\?"):
        find_dataset("oxford_pet")


def test_templates_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "templates.txt"
    file.write_text("\ufeffa photo of a {}.\n\n  itap of my {}. \n", encoding="utf-8")
    assert read_templates(file) == ("a photo of a {}.", "itap of my {}.")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a {}.\n\na photo.\n", r"line 3: 'a photo\.' has no \{\} for the class name"),
        ("a {} of {}.\n", r"line 1: .* has 2 \{\}"),
        ("\n \n", r"has no templates\. Write one per line"),
        ("", "is empty"),
    ],
)
def test_bad_template_files(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "templates.txt"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match=message):
        read_templates(file)


@pytest.mark.parametrize("given", ["cat, polar  bear,dog,", ["cat", " polar bear ", "dog"]])
def test_class_names_from_text_and_list(given: Any) -> None:
    assert class_names(given) == ("cat", "polar bear", "dog")


def test_class_names_from_a_file_keep_their_commas(tmp_path: Path) -> None:
    file = tmp_path / "classes"
    file.write_text("cat\n\nbear, polar\n", encoding="utf-8")
    assert class_names(file) == class_names(str(file)) == ("cat", "bear, polar")


def test_class_names_that_look_like_a_missing_file() -> None:
    with pytest.raises(FileError, match=r"no file nowhere\.txt"):
        class_names("nowhere.txt")


@pytest.mark.parametrize(("given", "message"), [(" , ", "no class names"), ("cat, dog, cat", "'cat' is named more")])
def test_bad_class_names(given: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        class_names(given)


class Words:
    """Features by hand: a prompt's is the direction that the table gives it. Remembers how it was asked."""

    logit_scale = 42.0

    def __init__(self, table: dict[str, list[float]]) -> None:
        self.table, self.calls = table, []

    def encode_texts(self, texts: list[str]) -> torch.Tensor:
        self.calls.append(list(texts))
        return torch.nn.functional.normalize(torch.tensor([self.table[text] for text in texts]))


def test_text_head_is_the_mean_of_unit_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"a cat": [5.0, 0.0], "the cat": [0.0, 1.0], "a dog {": [0.0, 2.0], "the dog {": [0.0, 1.0]}
    expected = torch.tensor([[0.5**0.5, 0.5**0.5], [0.0, 1.0]])
    for together in (1, 1024):  # a class at a time, or all
        monkeypatch.setattr("kedge.features.text_head.PROMPTS_TOGETHER", together)
        encoder: Any = Words(table)
        head = text_head(encoder, ["cat", "dog {"], ["a {}", "the {}"])
        torch.testing.assert_close(head.features, expected)
        assert head.class_names == ("cat", "dog {")
        assert head.logit_scale == 42.0
        assert len(encoder.calls) == (2 if together == 1 else 1)


def test_text_head_needs_classes() -> None:
    with pytest.raises(InputError, match="0 class names and 1 templates"):
        text_head(SimpleNamespace(), [], ["{}"])  # type: ignore[arg-type]
