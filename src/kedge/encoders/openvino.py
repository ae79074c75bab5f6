"""The image tower of an encoder run by OpenVINO: faster on CPUs, in float32, bfloat16 or 8-bit integers.

The torch tower is converted in memory, by tracing it on a blank image. For int8, NNCF then quantises the weights, and
the activations by their range on the calibration images. The result is cached, since both take seconds: a file in
`~/.cache/kedge/openvino` (or in `$XDG_CACHE_HOME/kedge/openvino`) with a name made of everything it depends on. A
damaged file is made again. The last `KEPT` used are kept.

The output is normalised by torch, so that rows have unit norm in every precision.

OpenVINO and NNCF report their use to Intel unless told not to. Here they cannot: their reporting package is hidden from
them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import KedgeError, SettingError
from ..progress import notice
from ..tensor_files import check_names, content_hash, load_tensors, save_tensors
from .encoder import Encoder, Visual, imported, one_line, quiet

KIND, VERSION = "converted model", 1
KEPT = 8  # models in the cache; a ViT-B/16 takes 340 MB, as int8 90 MB
REPORTING = "openvino_telemetry"

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Header:
    """What a file in the cache says beside the model."""


def image_tower(encoder: Encoder, dtype: str, calibration: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """The tower as a function, b×3×h×w pixels → b×d unit rows. It has as many threads as torch has now.

    dtype: float32, bfloat16 or int8. calibration: m×3×h×w pixels of typical images, for int8.
    """
    with _private():
        openvino = imported("openvino", "openvino")
        try:
            graph, weights = _model(openvino, encoder, calibration if dtype == "int8" else None)
            core = openvino.Core()
            model = core.read_model(graph, openvino.Tensor(weights))
            bfloat16 = dtype != "float32" and "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
            settings = {
                "INFERENCE_PRECISION_HINT": "bf16" if bfloat16 else "f32",  # in an int8 model, of what is not int8
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
                "PERFORMANCE_HINT": "LATENCY",  # one batch at a time, on all threads
            }
            tower = _Tower(core.compile_model(model, "CPU", settings), weights)
            if len(tower(torch.zeros(1, 3, *encoder.preprocessing.size))) != 1:  # a trace can fix the number
                raise ValueError("it takes only one number of images at a time.")
            return tower
        except KedgeError:
            raise
        except Exception as error:  # the libraries raise errors of many kinds
            raise SettingError(
                f"OpenVINO cannot run the image tower of {encoder.name}: {one_line(error)} Use the precision fp32."
            ) from error


class _Tower:
    """A compiled model as a function. Threads take turns."""

    def __init__(self, compiled: Any, weights: Bytes) -> None:
        self._compiled = compiled
        self._weights = weights  # the model uses their memory
        self._lock = threading.Lock()

    def __call__(self, pixels: Tensor) -> Tensor:
        with self._lock:
            (features,) = self._compiled(pixels.numpy()).values()
        return nn.functional.normalize(torch.from_numpy(features).float(), dim=-1)


def pixels_hash(pixels: Tensor) -> str:
    """sha256 of images as the encoder sees them."""
    return content_hash({"pixels": pixels}, {})


def _model(openvino: Any, encoder: Encoder, calibration: Tensor | None) -> tuple[bytes, Bytes]:
    """The converted model as OpenVINO's two files, the graph and its weights; from the cache if it is there."""
    with quiet(), torch.no_grad():
        traced = _traced(encoder)
    path = cache_folder() / f"{_key(openvino, encoder, traced, calibration)}.safetensors"
    with contextlib.suppress(KedgeError, OSError):
        return _read(path)
    notice(f"converting the image tower of {encoder.name} for OpenVINO, once …")
    with quiet(), torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):  # NNCF shows its progress on stdout
        model = _converted(openvino, encoder, traced)
        if calibration is not None:
            model = _quantised(model, calibration)
        graph, weights = _as_files(openvino, model)
    with contextlib.suppress(KedgeError, OSError):  # without a cache it is converted every time
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {"graph": torch.frombuffer(bytearray(graph), dtype=torch.uint8), "weights": torch.from_numpy(weights)}
        save_tensors(path, KIND, VERSION, tensors, {})
        _forget_oldest(path.parent)
    return graph, weights


def _read(path: Path) -> tuple[bytes, Bytes]:
    """A model of the cache; raises FileError if it is not there or damaged."""
    tensors, _ = load_tensors(path, KIND, VERSION, Header)
    check_names(path, tensors, ("graph", "weights"))
    os.utime(path)  # used now
    return tensors["graph"].numpy().tobytes(), tensors["weights"].numpy()


def cache_folder() -> Path:
    """Where converted models are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kedge" / "openvino"


def _forget_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)
    for path in files[:-KEPT]:
        path.unlink(missing_ok=True)


def _traced(encoder: Encoder) -> Any:
    """The tower as torch's record of its operations on blank images."""
    blank = torch.zeros(2, 3, *encoder.preprocessing.size)  # 2: a size of 1 could become a part of the model
    trace: Any = torch.jit.trace
    return trace(_Features(encoder.visual).eval(), blank, check_trace=False, strict=False)


def _key(openvino: Any, encoder: Encoder, traced: Any, calibration: Tensor | None) -> str:
    """A hash of what a converted model depends on."""
    parts = [
        VERSION,
        openvino.__version__,
        encoder.provenance.get("weights_sha256") or content_hash(encoder.visual.state_dict(), {}),
        re.sub(r"___torch_mangle_\d+", "", traced.inlined_graph.str(False)),  # operations and sizes; names are counted
    ]
    if calibration is not None:
        parts += [imported("nncf", "openvino").__version__, pixels_hash(calibration)]
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


class _Features(nn.Module):
    """A tower without the normalisation at its end, which would be quantised too."""

    def __init__(self, visual: nn.Module) -> None:
        super().__init__()
        self.visual = visual

    def forward(self, pixels: Tensor) -> Tensor:
        found: Tensor = self.visual.features(pixels) if isinstance(self.visual, Visual) else self.visual(pixels)
        return found


def _converted(openvino: Any, encoder: Encoder, traced: Any) -> Any:
    shape = openvino.PartialShape([-1, 3, *encoder.preprocessing.size])
    return openvino.convert_model(traced, example_input=torch.zeros(2, 3, *encoder.preprocessing.size), input=[shape])


def _quantised(model: Any, calibration: Tensor) -> Any:
    nncf = imported("nncf", "openvino")
    images = [image[None].numpy() for image in calibration]
    return nncf.quantize(model, nncf.Dataset(images), subset_size=len(images), model_type=nncf.ModelType.TRANSFORMER)


def _as_files(openvino: Any, model: Any) -> tuple[bytes, Bytes]:
    with tempfile.TemporaryDirectory(prefix="kedge-") as folder:
        graph = Path(folder) / "model.xml"
        openvino.save_model(model, graph, compress_to_fp16=False)
        return graph.read_bytes(), np.fromfile(graph.with_suffix(".bin"), dtype=np.uint8)


@contextlib.contextmanager
def _private() -> Iterator[None]:
    """Hide the package by which OpenVINO and NNCF report their use; then they have a stand-in that does nothing."""
    before = sys.modules.get(REPORTING)
    sys.modules[REPORTING] = None  # type: ignore[assignment]  # importing it is an ImportError
    try:
        yield
    finally:
        if before is None:
            del sys.modules[REPORTING]
        else:
            sys.modules[REPORTING] = before
