"""Models of open_clip 3 or later: a model's name with a tag of its weights, or a folder with open_clip_config.json.

Weights are loaded from safetensors only. Tags trained with QuickGELU use it with the plain model name too. The pixels
are made by `kedge.images.pixels` from the model's own preprocessing settings.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import FileError, SettingError, did_you_mean
from ..images.pixels import Preprocessing
from .encoder import Encoder, Visual, imported, made, one_line, quiet, weights_hash
from .hub import check_no_code, file_of, without_prompts

WEIGHTS = "open_clip_model.safetensors"


def load(name: str, where: str, device: torch.device) -> Encoder:
    """Load the encoder MODEL/TAG, or the one in a folder."""
    open_clip = imported("open_clip", "openclip")
    folder = Path(where).expanduser()
    about: dict[str, Any] = {"library": f"open_clip {open_clip.__version__}"}
    if os.path.isdir(folder):
        for needed in ("open_clip_config.json", WEIGHTS):
            if not (folder / needed).is_file():
                raise FileError(f"{folder} is not a model of open_clip: it has no {needed}. Download it again.")
        check_no_code(folder)
        weights, settings = folder / WEIGHTS, {"model_name": f"local-dir:{folder}"}
        about["encoder"] = f"openclip:{folder.resolve()}"  # an absolute path, which works from any folder
    else:
        weights, settings = _tagged(open_clip, where)
        about["revision"] = weights.parent.name  # the commit: the folder in the hub's cache
    try:
        with quiet(), without_prompts():  # some text towers and tokenizers are loaded with transformers
            model = open_clip.create_model(**settings, require_pretrained=True)
            tokenizer = open_clip.get_tokenizer(settings["model_name"])
    except Exception as error:  # damaged files raise many kinds of errors
        raise FileError(
            f"open_clip cannot load {where}: {one_line(error)}. Check the name, or download it again."
        ) from error

    def text(prompts: Sequence[str]) -> Tensor:
        features: Tensor = model.encode_text(tokenizer(list(prompts)).to(device))
        return features

    about["weights_sha256"] = weights_hash([weights])
    return made(name, model, Visual(model.visual, _see), text, _preprocessing(model, where), device, about)


def _see(tower: nn.Module, pixels: Tensor) -> Tensor:
    output = tower(pixels)
    features: Tensor = output[0] if isinstance(output, tuple) else output  # CoCa's tower also returns its tokens
    return features


def _tagged(open_clip: Any, where: str) -> tuple[Path, dict[str, Any]]:
    """The weights of MODEL/TAG, downloaded if necessary, and the arguments of `create_model`."""
    model, _, tag = where.partition("/")
    models = {known.lower(): known for known in open_clip.list_models()}
    if model not in models.values():
        near = difflib.get_close_matches(model.lower(), models, n=1)
        advice = f"did you mean {models[near[0]]!r}?" if near else "see open_clip.list_models()"
        raise SettingError(f"open_clip has no model {model!r}; {advice}")
    tags = open_clip.list_pretrained_tags_by_model(model)
    if tag not in tags:
        raise SettingError(f"open_clip's {model} has no weights {tag!r}{did_you_mean(tag, tags)}")
    found = open_clip.get_pretrained_cfg(model, tag)
    repository, _, file = str(found.get("hf_hub", "")).rpartition("/")
    weights = (
        file_of(repository, Path(file).stem + ".safetensors" if file else WEIGHTS, "openclip") if repository else None
    )
    if weights is None or not weights.is_file():
        raise SettingError(
            f"the weights of {model}/{tag} are a pickle. Pickles can run code; kedge loads none. Choose another tag."
        )
    quick = bool(found.get("quick_gelu"))
    if open_clip.get_model_config(model).get("quick_gelu", False) and not quick:
        raise SettingError(f"{tag} was not trained with QuickGELU. Choose {model.removesuffix('-quickgelu')}/{tag}.")
    return weights, {
        "model_name": model,
        "pretrained": str(weights),  # the file, not the tag: no request to the hub
        "force_quick_gelu": quick,
        "force_preprocess_cfg": {name: found.get(name) for name in ("mean", "std", "interpolation", "resize_mode")},
    }


def _preprocessing(model: Any, where: str) -> Preprocessing:
    """The model's settings, read as open_clip's `image_transform` does for inference."""
    found = model.visual.preprocess_cfg
    size = found["size"]
    height, width = (size, size) if isinstance(size, int) else size
    squash = found["resize_mode"] == "squash"
    if not squash and (found["resize_mode"] != "shortest" or height != width):
        raise SettingError(
            f"{where} has a resize mode that kedge does not know ({found['resize_mode']} to {height}×{width}). "
            "Choose another model."
        )
    return Preprocessing(
        resize=(height, width) if squash else height,
        crop=None if squash else (height, width),
        interpolation="bilinear" if found["interpolation"] == "bilinear" else "bicubic",
        mean=tuple(found["mean"]),
        std=tuple(found["std"]),
        centre="even",
    )
