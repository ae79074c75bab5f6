"""Files that a person wrote or edited: known labels, and the classes that can occur."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

import kedge
from kedge.errors import KedgeError
from kedge.labelling.class_file import read_present, write_classes
from kedge.labelling.known_file import read_known
from kedge.methods.given import NONE, names_alone

HEAD = names_alone(("cat", "dog", "polar bear", "=fox"))
IMAGES = ("a/0.jpg", "a/1.jpg", "b/0.jpg", "b/deep/2.jpg", "=x.jpg", "d\udcff.jpg")


def read(folder: Path, text: str, images: Sequence[str | int] = IMAGES, skipped: Sequence[str] = ()) -> dict[int, int]:
    (folder / "known.csv").write_text(text, encoding="utf-8")
    return read_known(folder / "known.csv", images, HEAD, skipped)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("image,label\na/0.jpg,dog\nb/0.jpg,none\n", {0: 1, 2: NONE}),
        ("\ufeffLabel, Image \nPolar_Bear, a/1.jpg \n", {1: 2}),  # as spreadsheets and people write
        ("\ufeffimage;label\na/0.jpg;dog\nb/0.jpg;none\n", {0: 1, 2: NONE}),  # spreadsheets of some countries
        ("image\tlabel\na/0.jpg\tdog\n", {0: 1}),
        ("image,label\na/0.jpg,\n\na/1.jpg,None of these\n", {1: NONE}),
        ("image,label\n'=x.jpg,'=fox\n", {4: 3}),  # neutral, as kedge writes it
        ("image,label\n=x.jpg,=fox\n", {4: 3}),
        ("image,label\nd\\udcff.jpg,cat\n", {5: 0}),
        ("image,label\na\\1.jpg,cat\n", {1: 0}),
        ("image,label\n/old/photos/a/1.jpg,cat\n", {1: 0}),  # the folder moved
        ("image,label\n./a/1.jpg,cat\n2.jpg,dog\ndeep/2.jpg,dog\n", None),
        ("image,label\n2.jpg,dog\n", {3: 1}),
        ("image,label\na/0.jpg,dog\na/0.jpg,Dog\n", {0: 1}),
        ("image,label,probability,true_label\na/0.jpg,cat,0.9,\na/1.jpg,cat,0.9,dog\n", {1: 1}),
        ("image,label\ngone.jpg,cat\n", {}),
    ],
)
def test_what_is_read(tmp_path: Path, text: str, expected: dict[int, int] | None) -> None:
    if expected is None:  # two paths for one image
        with pytest.raises(KedgeError, match=r"lines 3 and 4: both '2.jpg' and 'deep/2.jpg' could be the image"):
            read(tmp_path, text)
    else:
        assert read(tmp_path, text, skipped=["gone.jpg"]) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\na/0.jpg,cat\n", "has no column 'image'; found path, label. Its first line must be: image,label"),
        ("image,class\na/0.jpg,cat\n", "has no column 'label'"),
        ("image,label,probability\na/0.jpg,cat,0.9\n", "has labels that kedge predicted, and no column true_label"),
        ("image,label\na/0.jpg,cta\n", "line 2 has 'cta', which is no class; did you mean 'cat'?"),
        ("image,label\na/0.jpg,cat\nz/9.jpg,cat\n", "line 3: there is no image 'z/9.jpg'; did you mean"),
        ("image,label\n0.jpg,cat\n", "line 2: '0.jpg' could be 2 images, among them 'a/0.jpg' and 'b/0.jpg'"),
        ("image,label\nc/0.jpg,cat\n", "line 2: there is no image 'c/0.jpg'"),  # not the 0.jpg of another folder
        (
            "image,label\na/0.jpg,cat\na/1.jpg,cat\na/0.jpg,dog\n",
            "lines 2 and 4: the image 'a/0.jpg' is 'cat' and 'dog'",
        ),
        ("image,label\na/0.jpg,cat\na/0.jpg,none\n", "lines 2 and 3: the image 'a/0.jpg' is 'cat' and 'none'"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(KedgeError, match=re.escape(message)) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_a_known_class_that_cannot_occur_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "known.csv").write_text("image,label\na/0.jpg,none\na/1.jpg,dog\nb/0.jpg,cat\n")
    with pytest.raises(KedgeError, match=r"known.csv, line 4: the image 'b/0.jpg' is known to be 'cat', which is not"):
        read_known(tmp_path / "known.csv", IMAGES, HEAD, present=[1, 2])
    assert len(read_known(tmp_path / "known.csv", IMAGES, HEAD, present=[0, 1])) == 3


def test_images_without_paths_have_numbers(tmp_path: Path) -> None:
    assert read(tmp_path, "image,label\n3,cat\n", range(5)) == {3: 0}
    with pytest.raises(KedgeError, match="there is no image 'a/3'"):
        read(tmp_path, "image,label\na/3,cat\n", range(5))


def test_names_of_several_classes(tmp_path: Path) -> None:
    (tmp_path / "known.csv").write_text("image,label\na,crane\n")
    with pytest.raises(KedgeError, match="line 2: 'crane' is the name of 2 classes"):
        read_known(tmp_path / "known.csv", ["a"], names_alone(("crane", "crane")))
    assert read_present("crane", None, names_alone(("crane", "crane", "fox"))) == [0, 1]


def test_a_class_may_be_called_none(tmp_path: Path) -> None:
    (tmp_path / "known.csv").write_text("image,label\na,none\n")
    assert read_known(tmp_path / "known.csv", ["a"], names_alone(("cat", "none"))) == {0: 1}


class TestClasses:
    @pytest.mark.parametrize(
        ("present", "absent", "expected"),
        [
            (None, None, None),
            ("dog, cat", None, [0, 1]),
            ("names.txt", None, [1, 2]),
            (None, "cat, Polar-Bear", [1, 3]),
            ("dog, cat", "cat", [1]),
            ("edited.csv", None, [0, 3]),
            (None, "edited.csv", [0, 2, 3]),
            ("bare.csv", None, [1]),
        ],
    )
    def test_what_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: str, absent: str, expected: list[int]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("names.txt").write_text("dog\npolar bear\n")
        Path("edited.csv").write_text("class,count,present\ncat,3,yes\ndog,2,No\n'=fox,1,YES\n")
        Path("bare.csv").write_text("class\ndog\n")
        assert read_present(present, absent, HEAD) == expected

    @pytest.mark.parametrize(
        ("present", "absent", "message"),
        [
            ("cta", None, "--present has 'cta', which is no class; did you mean 'cat'?"),
            ("dog", "dog", "no class can occur: dog leaves none"),
            (
                None,
                "all.csv",
                "no class in all.csv has present = no. Write no for those that cannot occur, or name them.",
            ),
            ("odd.csv", None, "odd.csv, line 3: present is 'perhaps'. Write yes or no."),
            ("wrong.csv", None, "wrong.csv, line 2 has 'mouse', which is no class; choose from cat, dog"),
            ("other.csv", None, "other.csv has no column 'class'; found name"),
            ("gone.csv", None, "no file gone.csv"),
        ],
    )
    def test_what_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: str, absent: str, message: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("odd.csv").write_text("class,present\ncat,yes\ndog,perhaps\n")
        Path("all.csv").write_text("class,present\ncat,yes\ndog,yes\n")
        Path("wrong.csv").write_text("class\nmouse\n")
        Path("other.csv").write_text("name\nmouse\n")
        with pytest.raises(KedgeError, match=re.escape(message)):
            read_present(present, absent, HEAD)

    def test_what_is_written_can_be_read(self, tmp_path: Path) -> None:
        features = kedge.simulate(n=40, k=6, k_eff=3, seed=0)
        found = kedge.Predictions(features, kedge.adapt(features, method="stata"))
        write_classes(found, tmp_path / "found.csv")
        lines = (tmp_path / "found.csv").read_text(encoding="utf-8").splitlines()
        assert lines[0] == "class,count,evidence,example,present"
        first = found.result.classes[0]
        assert lines[1] == f"{first.name},{first.count:.1f},{round(first.evidence, 3)},{first.example},yes"
        numbers = sorted(each.number for each in found.result.classes)
        assert read_present(str(tmp_path / "found.csv"), None, features.head) == numbers
