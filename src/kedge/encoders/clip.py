"""CLIP in plain torch: an image tower and a text tower, with parts named as in transformers' files of weights.

transformers has the same model; `plain` says why it is here too. Configurations that are not known here are left to
transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..schema import Meta, Whole, fitted

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}
OLD_END = 2  # eos_token_id in older files, where it is wrong: there the end is the token with the highest number
Size = Annotated[int, Meta(ge=1, le=1 << 20)]
Depth = Annotated[int, Meta(ge=1, le=1000)]


@dataclass(frozen=True)
class Text:
    """The text tower's sizes, and what a configuration file leaves out."""

    vocab_size: Size = 49408
    max_position_embeddings: Size = 77
    eos_token_id: Whole = 49407
    hidden_size: Size = 512
    intermediate_size: Size = 2048
    num_hidden_layers: Depth = 12
    num_attention_heads: Size = 8
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5


@dataclass(frozen=True)
class Vision:
    """The image tower's sizes, and what a configuration file leaves out."""

    image_size: Size = 224
    patch_size: Size = 32
    num_channels: Size = 3
    hidden_size: Size = 768
    intermediate_size: Size = 3072
    num_hidden_layers: Depth = 12
    num_attention_heads: Size = 12
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5


@dataclass(frozen=True)
class Settings:
    """Of the whole model."""

    text: Text
    vision: Vision
    projection_dim: Size = 512


def read_settings(config: Mapping[str, Any]) -> Settings | None:
    """The settings in a config.json; None if it is not of CLIP, or has something that is not known here."""
    if config.get("model_type") != "clip":
        return None
    towers = {}
    for tower in ("text", "vision"):  # older files have a tower's settings a second time, and this one counts
        parts = [config.get(f"{tower}_config") or {}, config.get(f"{tower}_config_dict") or {}]
        if not all(isinstance(part, dict) for part in parts):
            return None
        towers[tower] = parts[0] | parts[1]
    try:
        found = fitted({**towers, "projection_dim": config.get("projection_dim", 512)}, Settings)
    except ValueError:
        return None
    return found if {found.text.hidden_act, found.vision.hidden_act} <= ACTIVATIONS.keys() else None


def embedding(rows: int, width: int) -> nn.Embedding:
    """An embedding whose weights are still to come. (For random ones, torch would import its compiler.)"""
    made: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, width))  # type: ignore[no-untyped-call]
    return made


class CLIP(nn.Module):
    """Both towers, and the projections to the common space."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        text, vision, common = settings.text, settings.vision, settings.projection_dim
        self.config = settings  # shown with the model: its layers do not say all of it
        self.text_length = text.max_position_embeddings
        self.text_model, self.vision_model = TextTower(text), VisionTower(vision)
        self.visual_projection = nn.Linear(vision.hidden_size, common, bias=False)
        self.text_projection = nn.Linear(text.hidden_size, common, bias=False)
        self.logit_scale = nn.Parameter(torch.empty(()))

    def get_image_features(self, pixel_values: Tensor) -> Tensor:
        """b×3×h×w → b×d."""
        projected: Tensor = self.visual_projection(self.vision_model(pixel_values))
        return projected

    def get_text_features(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """m×l tokens → m×d. What pads a text comes after its end, where its features cannot see it."""
        projected: Tensor = self.text_projection(self.text_model(input_ids))
        return projected


class VisionTower(nn.Module):
    """Patches and a class token through the layers; the class token comes out."""

    def __init__(self, sizes: Vision) -> None:
        super().__init__()
        width, patch, channels = sizes.hidden_size, sizes.patch_size, sizes.num_channels
        self.embeddings = nn.Module()
        self.embeddings.class_embedding = nn.Parameter(torch.empty(width))
        self.embeddings.patch_embedding = nn.Conv2d(channels, width, patch, patch, bias=False)
        self.embeddings.position_embedding = embedding((sizes.image_size // patch) ** 2 + 1, width)
        self.pre_layrnorm = nn.LayerNorm(width, sizes.layer_norm_eps)  # so called in the files
        self.encoder = Layers(sizes)
        self.post_layernorm = nn.LayerNorm(width, sizes.layer_norm_eps)

    def forward(self, pixels: Tensor) -> Tensor:
        """b×3×h×w → b×width."""
        parts: Any = self.embeddings
        patches = parts.patch_embedding(pixels).flatten(2).transpose(1, 2)
        token = parts.class_embedding.expand(pixels.shape[0], 1, -1)  # len() would be a constant when traced
        x = torch.cat([token, patches], dim=1) + parts.position_embedding.weight
        x = self.encoder(self.pre_layrnorm(x), causal=False)
        seen: Tensor = self.post_layernorm(x[:, 0])
        return seen


class TextTower(nn.Module):
    """Tokens through the layers; the token at the end of the text comes out."""

    def __init__(self, sizes: Text) -> None:
        super().__init__()
        width = sizes.hidden_size
        self.end = sizes.eos_token_id
        self.embeddings = nn.Module()
        self.embeddings.token_embedding = embedding(sizes.vocab_size, width)
        self.embeddings.position_embedding = embedding(sizes.max_position_embeddings, width)
        self.encoder = Layers(sizes)
        self.final_layer_norm = nn.LayerNorm(width, sizes.layer_norm_eps)

    def forward(self, tokens: Tensor) -> Tensor:
        """m×l → m×width."""
        parts: Any = self.embeddings
        x = parts.token_embedding(tokens) + parts.position_embedding.weight[: tokens.shape[1]]
        x = self.final_layer_norm(self.encoder(x, causal=True))
        last: Tensor = tokens.argmax(dim=1) if self.end == OLD_END else (tokens == self.end).int().argmax(dim=1)
        seen: Tensor = x[torch.arange(len(x), device=x.device), last]
        return seen


class Layers(nn.Module):
    """The layers of a tower."""

    def __init__(self, sizes: Text | Vision) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.num_hidden_layers))

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        """b×l×width → b×l×width; causal: a token sees only those before it."""
        for layer in self.layers:
            x = layer(x, causal)
        return x


class Layer(nn.Module):
    """Attention and two linear maps, each after a LayerNorm and added to its input."""

    def __init__(self, sizes: Text | Vision) -> None:
        super().__init__()
        width, inner, eps = sizes.hidden_size, sizes.intermediate_size, sizes.layer_norm_eps
        self.self_attn = Attention(width, sizes.num_attention_heads)
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.mlp = nn.Module()
        self.mlp.fc1, self.mlp.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.activation = ACTIVATIONS[sizes.hidden_act]

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        """b×l×width → b×l×width."""
        x = x + self.self_attn(self.layer_norm1(x), causal)
        mlp: Any = self.mlp
        added: Tensor = x + mlp.fc2(self.activation(mlp.fc1(self.layer_norm2(x))))
        return added


class Attention(nn.Module):
    """Attention with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        """b×l×width → b×l×width."""
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        out: Tensor = self.out_proj(seen.transpose(1, 2).flatten(2))
        return out
