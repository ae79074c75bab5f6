"""CLIP and SigLIP models, from a folder or from the hub. `plain` reads CLIP, transformers 4.57 or 5 the others.

A folder has config.json, the weights as safetensors, the tokenizer, and preprocessor_config.json. The pixels are made
by `kedge.images.pixels` from that file, not by the library's image processors. Pickled weights are never loaded, and
Python code in a model's folder is never run.

SigLIP has a logit bias, does not crop images, and needs text as in its training: in lower case, padded to full length,
without a mask.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import FileError, MissingExtra, SettingError
from ..images.pixels import INTERPOLATIONS, Preprocessing
from . import plain
from .encoder import Encoder, Visual, imported, made, one_line, weights_hash
from .hub import PREPROCESSORS, check_no_code, lacking, model_folder, read_json, silent, weight_files

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def load(name: str, where: str, device: torch.device) -> Encoder:
    """Load the encoder in a folder, or in a repository on the hub."""
    folder = model_folder(where)
    if fault := lacking(folder):
        raise FileError(f"{folder} is not a model of transformers: {fault}")
    check_no_code(folder)
    preprocessing = read_preprocessing(folder)
    config = read_json(folder / "config.json")
    texts: Callable[[Sequence[str]], Tensor]
    if make := plain.find(folder, config):
        model: Any
        model, texts = plain.load(folder, make)
        library = "kedge"
    else:
        transformers = imported("transformers", "hf")
        model, texts = _by_transformers(transformers, folder, where)
        library = f"transformers {transformers.__version__}"
    about = {
        "weights_sha256": weights_hash(weight_files(folder)),
        "library": library,
        "model_type": config.get("model_type"),
    }
    if not os.path.isdir(os.path.expanduser(where)):
        about["revision"] = folder.name  # the commit
    elif name != "tiny":
        about["encoder"] = f"hf:{folder.resolve()}"  # an absolute path, which works from any folder
    try:
        return made(name, model, Visual(_without_text(model), _see), texts, preprocessing, device, about)
    except (ValueError, RuntimeError) as error:
        raise FileError(f"the files in {folder} do not match: {one_line(error)} Download them again.") from error


def _by_transformers(transformers: Any, folder: Path, where: str) -> tuple[Any, Texts]:
    """The model with its weights as float32, and its text tower with the tokenizer."""
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        with silent():
            model, report = transformers.AutoModel.from_pretrained(
                folder, use_safetensors=True, output_loading_info=True, dtype=torch.float32, **local
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **local)
    except ImportError as error:
        raise MissingExtra(f"the tokenizer of {where} needs another package: {one_line(error)}") from error
    except Exception as error:  # damaged files raise many kinds of errors
        raise FileError(f"transformers cannot load {folder}: {one_line(error)} Download it again.") from error
    kind = model.config.model_type
    if kind == "siglip2" or not all(hasattr(model, part) for part in ("get_image_features", "logit_scale")):
        raise SettingError(
            f"kedge cannot use {where}, a model of type {kind!r}. Choose a CLIP or SigLIP model of fixed image size."
        )
    if report["missing_keys"]:  # the library initialises them at random
        raise FileError(f"the weights in {folder} lack {sorted(report['missing_keys'])[0]}, … Download them again.")
    return model, Texts(model, tokenizer)


def _features(output: Any) -> Tensor:
    """The projected features from `get_…_features`: a tensor in transformers 4, an object in 5."""
    features: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return features


def _see(tower: nn.Module, pixels: Tensor) -> Tensor:
    return _features(tower.get_image_features(pixel_values=pixels))  # type: ignore[operator]


def _without_text(model: nn.Module) -> nn.Module:
    """The same model without the text tower (weights are shared), so that methods adapt only the image tower."""
    visual = copy.copy(model)
    visual._modules = {name: part for name, part in model._modules.items() if not name.startswith("text_")}
    return visual


class Texts:
    """Prompts → features (m×d, not normalised); long prompts are truncated to the model's context length."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.siglip = model.config.model_type.startswith("siglip")
        self.length = model.config.text_config.max_position_embeddings

    def __call__(self, prompts: Sequence[str]) -> Tensor:
        """Encode a few prompts."""
        tokens = self.tokenizer(
            [prompt.lower() for prompt in prompts] if self.siglip else list(prompts),
            padding="max_length" if self.siglip else True,
            truncation=True,
            max_length=self.length,
            return_tensors="pt",
        )
        names = ["input_ids"] if self.siglip else ["input_ids", "attention_mask"]
        return _features(self.model.get_text_features(**{name: tokens[name].to(self.model.device) for name in names}))


def read_preprocessing(folder: Path) -> Preprocessing:
    """Read preprocessor_config.json or, in newer folders, processor_config.json."""
    path = next(folder / name for name in PREPROCESSORS if (folder / name).is_file())
    found = read_json(path)
    found = found.get("image_processor", found)
    siglip = "siglip" in str(found.get("image_processor_type", found.get("processor_class", ""))).lower()
    size = found.get("size", {"height": 224, "width": 224} if siglip else {"shortest_edge": 224})
    crop = found.get("crop_size", 224) if found.get("do_center_crop", not siglip) else None
    try:
        return Preprocessing(
            resize=_size(size, square=crop is None) if found.get("do_resize", True) else None,
            crop=None if crop is None else _pair(crop),
            interpolation={mode.value: name for name, mode in INTERPOLATIONS.items()}[found.get("resample", 3)],
            rescale=found.get("rescale_factor", 1 / 255) if found.get("do_rescale", True) else 1.0,
            **_normalisation(found, siglip),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"{path} has a preprocessing that kedge does not know ({type(error).__name__}: {one_line(error)}). "
            "Choose a model with a fixed image size."
        ) from error


def _normalisation(found: dict[str, Any], siglip: bool) -> dict[str, Any]:
    if not found.get("do_normalize", True):
        return {}
    mean, std = ((0.5,) * 3, (0.5,) * 3) if siglip else (CLIP_MEAN, CLIP_STD)
    return {"mean": tuple(found.get("image_mean", mean)), "std": tuple(found.get("image_std", std))}


def _size(size: Any, square: bool) -> int | tuple[int, int]:
    """224, {"shortest_edge": 224} or {"height": 224, "width": 224}; a number is the shorter edge, or a square."""
    if isinstance(size, int):
        return (size, size) if square else size
    return int(size["shortest_edge"]) if "shortest_edge" in size else _pair(size)


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size["height"]), int(size["width"]))
