"""The model: an image tower and a text tower of transformers, and how it is saved."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import tokens
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertModel, ConvNextConfig, ConvNextModel
from transformers import VisionTextDualEncoderConfig as Config
from transformers import VisionTextDualEncoderModel as Model

SIDE, DIMENSION = 48, 128
MEAN, STD = 0.55, 0.28  # of the pictures' pixels


def new_model(tokenizer: Any) -> Model:
    """An untrained model for this tokenizer's vocabulary: a ConvNeXt for images, a BERT for text."""
    text = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=tokens.MAX_TOKENS,
        pad_token_id=tokenizer.pad_token_id,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    image = ConvNextConfig(
        image_size=SIDE,
        patch_size=4,
        num_stages=3,
        hidden_sizes=[64, 128, 256],
        depths=[1, 2, 1],
        hidden_act="relu",
        layer_scale_init_value=0.0,  # none: it slows the start
        hidden_size=256,  # of the pooled features
    )
    config = Config.from_vision_text_configs(image, text, projection_dim=DIMENSION)
    model = Model(config, vision_model=ConvNextModel(image), text_model=BertModel(text))
    for weight in model.vision_model.parameters():
        if weight.ndim > 1:
            nn.init.kaiming_normal_(weight, nonlinearity="linear")  # transformers' 0.02 is too small for narrow layers
    return model


def embed_images(model: Any, pictures: Tensor) -> Tensor:
    """Unit features (b×d) of pictures (b×3×side×side, 0 to 1)."""
    pixels = ((pictures - MEAN) / STD).contiguous(memory_format=torch.channels_last)
    return functional.normalize(model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output).float())


def embed_texts(model: Any, tokenizer: Any, texts: list[str]) -> Tensor:
    """Unit features (m×d) of texts."""
    words = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    pooled = model.text_model(input_ids=words["input_ids"], attention_mask=words["attention_mask"]).pooler_output
    return functional.normalize(model.text_projection(pooled).float())


def save(model: Any, directory: Path, scale: float) -> None:
    """Half-precision weights with this logit scale, and the preprocessing; loads as float32."""
    half = {name: v.half() if v.is_floating_point() else v for name, v in model.state_dict().items()}
    half["logit_scale"] = torch.tensor(math.log(scale)).half()
    model.save_pretrained(directory, state_dict=half)
    (directory / "model.safetensors").chmod(0o644)  # it is written readable by the owner only
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "dtype": "float32"}, indent=2, sort_keys=True) + "\n")
    preprocessing = {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": SIDE},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": SIDE, "width": SIDE},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [MEAN] * 3,
        "image_std": [STD] * 3,
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(preprocessing, indent=2) + "\n")
