"""Models that are read without transformers: CLIP, and the bundled one. Their weights, and their tokens.

To import transformers' form of a model takes two seconds, since text generation, distributed training and compilers
come along. The features are the same to 1e-6 (tests/encoders/test_plain.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import FileError
from .bundled import Bundled
from .clip import CLIP, read_settings
from .encoder import TINY, imported, one_line
from .hub import weight_files

WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"  # CLIP's
PADDING = 0  # a token that no text tower here looks at


def find(folder: Path, config: Mapping[str, Any]) -> Callable[[], nn.Module] | None:
    """What makes the model in a folder, without its weights; None if transformers has to read it."""
    if folder == TINY:
        return partial(Bundled, config)
    settings = read_settings(config)
    has_tokens = any(all((folder / name).is_file() for name in names) for names in (("tokenizer.json",), CLIP_FILES))
    return partial(CLIP, settings) if settings and has_tokens else None


def load(folder: Path, make: Callable[[], nn.Module]) -> tuple[nn.Module, Texts]:
    """The model with its weights as float32, and its text tower with the tokenizer."""
    from safetensors.torch import load_file

    imported("tokenizers", "hf")
    try:
        with torch.device("meta"):  # no memory, and no random numbers, for weights that are replaced
            model = make()
        weights: dict[str, Tensor] = {}
        for path in weight_files(folder):
            weights |= {name: found.to(torch.float32, copy=True) for name, found in load_file(path).items()}
        missing, _ = model.load_state_dict(weights, strict=False, assign=True)
        texts = Texts(model, folder)
    except Exception as error:  # damaged files raise many kinds of errors
        raise FileError(f"cannot load the model in {folder}: {one_line(error)} Download it again.") from error
    if missing:
        raise FileError(f"the weights in {folder} lack {sorted(missing)[0]}, … Download them again.")
    return model, texts


class Texts:
    """Prompts → features (m×d, not normalised); long prompts are truncated to the model's context length."""

    def __init__(self, model: Any, folder: Path) -> None:
        self.model = model
        self.tokenizer = _tokenizer(folder)
        self.tokenizer.enable_truncation(model.text_length)
        self.tokenizer.enable_padding(pad_id=PADDING)

    def __call__(self, prompts: Sequence[str]) -> Tensor:
        """Encode a few prompts."""
        found = self.tokenizer.encode_batch(list(prompts))
        device = self.model.logit_scale.device
        tokens = torch.tensor([each.ids for each in found], device=device)
        mask = torch.tensor([each.attention_mask for each in found], device=device)
        features: Tensor = self.model.get_text_features(tokens, mask)
        return features


CLIP_FILES = "vocab.json", "merges.txt"


def _tokenizer(folder: Path) -> Any:
    """The tokenizer in a folder: tokenizer.json, or CLIP's with these files of words."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

    if (folder / "tokenizer.json").is_file():
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    start, end = "<|startoftext|>", "<|endoftext|>"
    files = [str(folder / name) for name in CLIP_FILES]
    tokenizer = Tokenizer(models.BPE.from_file(*files, unk_token=end, end_of_word_suffix="</w>"))
    tokenizer.add_special_tokens([start, end])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(WORDS), "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    last, first = ((token, int(tokenizer.token_to_id(token) or 0)) for token in (end, start))
    tokenizer.post_processor = processors.RobertaProcessing(last, first, trim_offsets=False, add_prefix_space=False)
    return tokenizer
