"""Tiny random models in transformers' own format, and its own PIL image processors, to test encoders with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason='transformers is not installed: pip install "kedge[hf]"')

WORDS = ["a", "photo", "of", "the", "cat", "dog", "bird", "red", "small", "."]
SIZE = 32
FIVE = int(transformers.__version__.split(".")[0]) >= 5


def processor(kind: str, **settings: Any) -> Any:
    """The library's own processor by PIL: a class of its own in version 5, the only one without torchvision in 4."""
    if FIVE:
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil as Clip
        from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil as Siglip
    else:
        from transformers.models.clip.image_processing_clip import CLIPImageProcessor as Clip
        from transformers.models.siglip.image_processing_siglip import SiglipImageProcessor as Siglip
    return (Siglip if kind == "siglip" else Clip)(do_convert_rgb=True, **settings)


def pixels(of: Any, image: Any) -> torch.Tensor:
    """What a processor makes of one image, 3×h×w."""
    # Version 4 takes the height of an image of one pixel for its channels, unless told.
    told = {} if FIVE else {"input_data_format": "channels_last"}
    found: torch.Tensor = of(image, return_tensors="pt", **told)["pixel_values"][0]
    return found


def tower(**more: Any) -> dict[str, Any]:
    return {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, **more}


def build(folder: Path, kind: str, seed: int = 0, **larger: Any) -> Path:
    """A folder with a random CLIP or SigLIP, its tokenizer of ten words, and its processor's settings.

    larger: settings of the visual tower, for one that is not tiny.
    """
    torch.manual_seed(seed)
    text = tower(vocab_size=16, max_position_embeddings=8)
    vision = tower(**{"image_size": SIZE, "patch_size": 8, **larger})
    size = vision["image_size"]
    if kind == "clip":
        ends = {"bos_token_id": 11, "eos_token_id": 12, "pad_token_id": 13}
        config = transformers.CLIPConfig(
            text_config={**text, "projection_dim": 24, **ends},
            vision_config={**vision, "projection_dim": 24},
            projection_dim=24,
        )
        model = transformers.CLIPModel(config)
        settings = {"size": {"shortest_edge": size}, "crop_size": {"height": size, "width": size}}
    else:
        config = transformers.SiglipConfig(text_config={**text, "projection_size": 32}, vision_config=vision)
        model = transformers.SiglipModel(config)
        settings = {"size": {"height": size, "width": size}}
        with torch.no_grad():
            model.logit_scale.fill_(2.3)
            model.logit_bias.fill_(-10.0)
    model.save_pretrained(folder)
    processor(kind, **settings).save_pretrained(folder)
    _tokenizer(folder, kind)
    return folder


def _tokenizer(folder: Path, kind: str) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = ["<unk>", "<bos>", "<eos>", "<pad>"]
    words = {word: i for i, word in enumerate([*WORDS, *special])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = "<bos> $A <eos>" if kind == "clip" else "$A <eos>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=ends, special_tokens=[(name, words[name]) for name in ("<bos>", "<eos>")]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1000, **names})
    )
