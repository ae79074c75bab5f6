"""The verdict: a level, one sentence, and why."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from answer_cases import answer_of, batch, random_answer
from kedge.answers.answer import Answer
from kedge.answers.verdict import ERROR, Verdict, verdict
from kedge.arrays import unit
from kedge.encoders.familiar import Familiar
from kedge.features.text_head import TextHead
from kedge.methods.contract import UNKNOWN
from kedge.methods.given import NONE


def judged(found: Verdict, level: str, reason: str) -> None:
    assert found.level == level
    assert reason in found.sentence
    assert found.sentence.lower().startswith(level)
    assert found.sentence.count("\n") == 0
    assert found.sentence.endswith(".")
    assert str(found) == found.sentence


def test_a_good_batch() -> None:
    found = verdict(answer_of(*batch(noise=0.5)))
    judged(found, "good", f"about {100 * found.accuracy:.0f} % of the labels")
    assert found.numbers["images"] == 60
    assert found.numbers["agreement"] > 0.9
    assert f"± {100 * ERROR:.0f} points" in found.sentence


def test_a_single_image_is_weak() -> None:
    found = verdict(answer_of(*batch(1, noise=0.1)))
    judged(found, "weak", "a single image can be compared with no other")
    assert f"the label is right with a probability of about {100 * found.accuracy:.0f} %" in found.sentence


@pytest.mark.parametrize(("scale", "level", "reason"), [
    (0.5, "do not use", "finds all classes equally likely"),
    (1.5, "weak", "undecided about most images"),
])  # fmt: skip
def test_zero_shot_is_undecided(scale: float, level: str, reason: str) -> None:
    x, head = batch()
    judged(verdict(answer_of(x, TextHead(head.features, scale))), level, reason)


def test_neighbours_disagree() -> None:
    random = torch.Generator().manual_seed(0)
    noise, texts = (unit(torch.randn(rows, 2000, generator=random)) for rows in (300, 6))
    judged(verdict(answer_of(noise, TextHead(texts, 50.0))), "do not use", "no more often than by chance")
    sure = TextHead(texts, 300.0)
    judged(verdict(answer_of(noise, sure)), "weak", "similar images often have different labels")


def test_nearly_all_images_have_one_label() -> None:
    x, head = batch(100, noise=0.5)
    judged(verdict(answer_of(x[::6], replace(head, class_names=tuple("abcdef")))), "weak", "have the label 'a'")
    judged(verdict(answer_of(x[::6], head)), "weak", "have the label 'class 0'")
    assert "have the label" not in verdict(answer_of(x[::12], head)).sentence  # too few to wonder


@pytest.mark.parametrize(("share", "level"), [(0.2, "weak"), (0.6, "do not use")])
def test_many_images_show_none_of_the_classes(share: float, level: str) -> None:
    answer = answer_of(*batch(noise=0.5))
    none = (torch.arange(60) < 60 * share).float()
    judged(verdict(answer, none), level, f"{100 * share:.1f} % of the images look like none of the classes")
    assert verdict(answer, 0 * none).level == "good"


def test_images_that_were_taken_out_are_mentioned() -> None:
    x, head = batch(noise=0.5)
    known = torch.full((60,), UNKNOWN)

    def judge(rejected: int) -> Verdict:
        return verdict(answer_of(x, head, known=known.index_fill(0, torch.arange(rejected), NONE)), rejected=rejected)

    reason = "% of the images were taken out, since they look like none of the classes"
    judged(judge(15), "good", f"25.0 {reason}")
    judged(judge(40), "weak", f"66.7 {reason}")
    judged(judge(60), "do not use", f"100.0 {reason}")  # no label is known
    assert judge(15).numbers["rejected"] == 0.25
    assert "taken out" not in judge(0).sentence


def test_labels_that_the_encoder_does_not_support_are_weak() -> None:
    answer = answer_of(*batch(noise=0.5))
    judged(verdict(replace(answer, z=answer.z.roll(1, dims=1))), "weak", "the encoder alone gives these labels")


def test_the_expected_accuracy_lies_halfway_unless_a_temperature_put_it_there() -> None:
    x, head = batch()
    answer = answer_of(x, head)
    sure = replace(answer, z=torch.nn.functional.one_hot(answer.labels, head.k).float())
    confidence = float(answer.zero_shot.amax(dim=1).mean())
    assert verdict(sure).accuracy == pytest.approx((1 + confidence) / 2)
    assert verdict(replace(sure, tempered=True)).accuracy == 1
    assert verdict(answer).accuracy == pytest.approx(confidence)


def test_known_labels_are_not_judged() -> None:
    x, head = batch(40, strangers=20)
    known = torch.full((60,), UNKNOWN)
    known[40:] = NONE
    known[:5] = 0
    found = verdict(answer_of(x, head, known=known))
    alone = verdict(answer_of(x[5:40], head))
    assert found.numbers["images"] == 35
    assert found.accuracy == pytest.approx(alone.accuracy)
    judged(verdict(answer_of(x, head, known=known.clamp_max(NONE))), "good", "every label is known")


def test_classes_that_cannot_occur_are_not_judged() -> None:
    x, head = batch()
    present = torch.tensor([0, 3])
    numbers = verdict(answer_of(x, head, present=present)).numbers
    listed = numbers.pop("listed")
    assert numbers == pytest.approx(verdict(answer_of(x, head.select(present))).numbers)
    assert listed == pytest.approx(float(head.log_zero_shot(x).exp()[:, present].sum(dim=1).mean()))


def test_a_list_of_classes_that_does_not_fit_is_weak() -> None:
    x, head = batch(noise=0.5)
    of_two = x[torch.arange(60) % 6 < 2]
    wrong, right = (verdict(answer_of(of_two, head, present=torch.tensor(list_))) for list_ in ([4, 5], [0, 1]))
    judged(
        wrong, "weak", f"gives {100 - 100 * wrong.numbers['listed']:.1f} % of the probability to classes that cannot"
    )
    assert right.level == "good"


def test_one_class_alone_promises_nothing() -> None:
    x, head = batch()
    reason = "only one class can occur, so all images get its label, whatever they show"
    for answer in (answer_of(x, head, present=torch.tensor([3])), answer_of(x, head.select(torch.tensor([3])))):
        assert verdict(answer).sentence == f"Weak: {reason}."
    judged(verdict(answer_of(x[:1], head, present=torch.tensor([3]))), "weak", reason)


@pytest.mark.parametrize("n", [1, 2, 3, 30])
@pytest.mark.parametrize("k", [1, 2, 50])
def test_any_size_has_a_verdict(n: int, k: int) -> None:
    found = verdict(random_answer(0, n, k))
    assert 0 <= found.accuracy <= 1
    assert all(value == value for value in found.numbers.values())


def test_images_that_the_encoder_does_not_know() -> None:
    x, head = batch(noise=0.5)
    near, far = (Familiar(centres, 0.1, "") for centres in (unit(x), -unit(x)))
    assert verdict(replace(answer_of(x, head), familiar=near)).level == "good"
    judged(verdict(replace(answer_of(x, head), familiar=far)), "do not use", "does not know such images")


CLASSES = (
    ["dog", "cat", "bird"],
    ["cat", "rocket", "moon", "cup of coffee", "camera", "horse", "motorcycle", "clock"],
    ["brick", "grass", "gravel"],
)


@pytest.fixture(scope="module")
def tiny():  # type: ignore[no-untyped-def]
    pytest.importorskip("transformers", reason="the bundled model needs transformers: kedge[hf]")
    from kedge.encoders.names import load_encoder

    return load_encoder("tiny", device="cpu")


def labelled(encoder, pictures: list[Path], classes: list[str]) -> Answer:  # type: ignore[no-untyped-def]
    from kedge.encoders.familiar import familiar
    from kedge.features.text_head import text_head
    from kedge.images.pixels import open_image

    x = encoder.encode_images(torch.stack([encoder.preprocessing(open_image(path)) for path in pictures]))
    return answer_of(x, text_head(encoder, classes, "a photo of a {}."), familiar=familiar(encoder.provenance))


@pytest.mark.parametrize("classes", CLASSES, ids=len)
def test_the_bundled_model_does_not_know_photographs(tiny, classes: list[str]) -> None:  # type: ignore[no-untyped-def]
    spec = find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("scikit-image, whose package has some photographs, is not installed")
    data = Path(next(iter(spec.submodule_search_locations))) / "data"
    photographs = sorted(path for path in data.iterdir() if path.suffix in (".png", ".jpg"))
    assert len(photographs) > 10
    judged(verdict(labelled(tiny, photographs, classes)), "do not use", "does not know such images")


@pytest.mark.parametrize("each", [1, 5])
def test_the_bundled_model_knows_its_pictures(tiny, each: int, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from zipfile import ZipFile

    from kedge.encoders.tiny import IMAGES

    with ZipFile(IMAGES) as archive:
        names = sorted(name for name in archive.namelist() if not name.endswith("/"))
        chosen = [name for i, name in enumerate(names) if i % 20 < each and i // 20 % 9 == 0]
        archive.extractall(tmp_path, chosen)
    found = verdict(labelled(tiny, [tmp_path / name for name in chosen], sorted({n.split("/")[0] for n in chosen})))
    assert found.level != "do not use"
    assert found.numbers["distance"] < 1.2
