"""What a precision means: on machines of every kind, and in torch's own half precision."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from kedge.encoders.encoder import Visual
from kedge.encoders.precision import AUTO_FROM, EXACT, Machine, Precision, choose, in_precision, this_machine, usual
from kedge.errors import MissingExtra, SettingError
from pictures import encoder as colour_encoder

CPU = torch.device("cpu")
OLD = Machine(frozenset({"avx2"}), None, False)
NEW = Machine(frozenset({"avx2", "avx512_bf16"}), None, False)
ARM = Machine(frozenset({"asimd", "bf16"}), None, False)
OPENVINO = "OpenVINO 2026.1"


def with_extra(machine: Machine) -> Machine:
    return replace(machine, openvino="2026.1", nncf=True)


@pytest.mark.parametrize(
    ("asked", "machine", "chosen"),
    [
        ("fp32", with_extra(NEW), EXACT),
        ("auto", OLD, EXACT),
        ("auto", with_extra(OLD), EXACT),
        ("auto", NEW, Precision("bfloat16")),
        ("auto", with_extra(NEW), Precision("bfloat16", OPENVINO)),
        ("auto", with_extra(ARM), Precision("bfloat16")),  # OpenVINO has no bfloat16 there
        ("bf16", OLD, Precision("bfloat16")),
        ("bf16", with_extra(NEW), Precision("bfloat16", OPENVINO)),
        ("int8", with_extra(OLD), Precision("int8", OPENVINO)),
        ("int8", with_extra(ARM), Precision("int8", OPENVINO)),
    ],
)
def test_the_choice_on_processors(asked: str, machine: Machine, chosen: Precision) -> None:
    assert choose(asked, CPU, machine) == chosen


def test_the_choice_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = with_extra(NEW)
    for device in map(torch.device, ("cuda", "mps")):
        assert choose("auto", device, machine=machine) == Precision("float16")
        assert choose("bf16", device, machine=machine) == Precision("bfloat16")
        assert choose("fp32", device, machine=machine) == EXACT
        with pytest.raises(SettingError, match=f"int8 is for CPUs, and the encoder is on {device}"):
            choose("int8", device, machine=machine)


def test_a_few_images_are_exact_unless_something_is_said() -> None:
    assert usual(AUTO_FROM - 1) == "fp32"
    assert usual(AUTO_FROM) == "auto"


@pytest.mark.parametrize(("machine", "missing"), [(NEW, "openvino"), (replace(NEW, openvino="2026.1"), "nncf")])
def test_int8_without_the_extra_names_it(machine: Machine, missing: str) -> None:
    with pytest.raises(MissingExtra, match=rf"int8 needs {missing}, .* pip install 'kedge\[openvino\]'") as caught:
        choose("int8", CPU, machine=machine)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("asked", ["int4", "", "float32"])
def test_unknown_precisions(asked: str) -> None:
    with pytest.raises(SettingError, match="unknown precision"):
        choose(asked, CPU)


def test_this_machine_is_described_without_large_imports() -> None:
    this_machine.cache_clear()
    before = set(sys.modules)
    machine = this_machine()
    assert not {"openvino", "nncf"} & (set(sys.modules) - before)
    if sys.platform == "linux":
        assert machine.features
    assert str(Precision("bfloat16", OPENVINO)) == "bfloat16 by OpenVINO 2026.1"


def test_half_precision_is_asked_for_and_float32_comes_out() -> None:
    seen = []

    def model(_: torch.nn.Module, given: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32)
        return torch.full((len(given), 4), 0.5, dtype=torch.bfloat16)

    exact = replace(colour_encoder(), visual=Visual(torch.nn.Identity(), model), dimension=4)
    fast = in_precision(exact, Precision("bfloat16"))
    for encoder in (fast, exact):
        features = encoder.encode_images(torch.zeros(3, 3, 2, 2))
        assert torch.equal(features, torch.full((3, 4), 0.5))
        assert features.dtype == torch.float32
    assert seen == [torch.bfloat16, torch.float32]
    assert fast.provenance == {**exact.provenance, "precision": "bfloat16", "engine": "torch"}
    assert in_precision(exact, EXACT) is exact
