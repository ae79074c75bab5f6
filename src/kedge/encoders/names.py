"""Load an encoder by name.

| name                 | encoder                                                                                   |
|----------------------|-------------------------------------------------------------------------------------------|
| `tiny`               | the small model that comes with kedge; no download                                        |
| `hf:OWNER/NAME`      | a CLIP or SigLIP model from the Hugging Face hub, loaded with transformers;               |
|                      | `hf:OWNER/NAME@REVISION` asks for a branch, a tag or a commit                             |
| `openclip:MODEL/TAG` | a model of open_clip, and the tag of its weights                                          |
| a folder             | with a model of transformers (config.json) or of open_clip (open_clip_config.json);       |
|                      | `hf:` or `openclip:` before the path chooses one                                          |
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from ..errors import SettingError, did_you_mean
from .encoder import TINY, Encoder, one_line


def load_encoder(name: str | Encoder, *, device: str = "auto") -> Encoder:
    """Load the encoder of this name to a device; "auto" is a GPU if there is one.

    name: `tiny`, `hf:OWNER/NAME`, `openclip:MODEL/TAG` or a local folder; `kedge ls encoders` lists them.

    A loaded encoder is returned as it is, on its own device.
    """
    if not isinstance(name, str):
        if device != "auto":
            raise SettingError(f"a loaded encoder stays on its device; got device {device!r}. Leave the device out.")
        return name
    place = _device(device)
    kind, colon, rest = name.partition(":")
    if name == "tiny":
        kind, rest = "hf", str(TINY)
    elif os.path.isdir(os.path.expanduser(name)):
        kind, rest = ("openclip" if (Path(name).expanduser() / "open_clip_config.json").is_file() else "hf"), name
    elif not (colon and rest and kind in ("hf", "openclip")):
        raise SettingError(_unknown(name))
    if kind == "hf":
        from ..encoders import hf

        return hf.load(name, rest, place)
    from ..encoders import openclip

    return openclip.load(name, rest, place)


def _unknown(name: str) -> str:
    """The error message for an unknown name."""
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", name):
        return f"no encoder or folder {name!r}; did you mean 'hf:{name}'? Or give the path of a model folder."
    kinds = {"tiny": "tiny", "hf": "hf:OWNER/NAME", "openclip": "openclip:MODEL/TAG"}
    kind, colon, _ = name.partition(":")
    if kind in kinds and colon:
        return f"the encoder name {name!r} is not complete. Write {kinds[kind]}."
    if "/" in name and not colon:
        return f"no encoder or folder {name!r}. Check the path (the current folder is {Path.cwd()})."
    near = did_you_mean(kind, kinds)
    for short, full in kinds.items():
        near = near.replace(repr(short), repr(full))
    return f"unknown encoder {name!r}{near if near.endswith('?') else '; choose from ' + ', '.join(kinds.values())}"


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        number = torch.zeros(1, device=name)
        number.item()  # fails on a device without data, like meta
        return number.device
    except (RuntimeError, AssertionError) as error:
        raise SettingError(f"cannot use the device {name!r}: {one_line(error)} Use auto or cpu.") from error
