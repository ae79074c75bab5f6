"""The bundled model in plain torch: a small ConvNeXt for images and a BERT of two layers for text.

Its parts are named as in its file of weights, which transformers reads too; `plain` says why it is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .clip import embedding

CHANNELS_EPS = 1e-6  # of the norms inside of the ConvNeXt


class Bundled(nn.Module):
    """Both towers, and the projections to the common space."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        text, vision, common = config["text_config"], config["vision_config"], config["projection_dim"]
        self.config = config  # shown with the model: its layers do not say all of it
        self.text_length: int = text["max_position_embeddings"]
        self.text_model, self.vision_model = TextTower(text), VisionTower(vision)
        self.visual_projection = nn.Linear(vision["hidden_sizes"][-1], common, bias=False)
        self.text_projection = nn.Linear(text["hidden_size"], common, bias=False)
        self.logit_scale = nn.Parameter(torch.empty(()))

    def get_image_features(self, pixel_values: Tensor) -> Tensor:
        """b×3×h×w → b×d."""
        projected: Tensor = self.visual_projection(self.vision_model(pixel_values))
        return projected

    def get_text_features(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """m×l tokens → m×d; attention_mask is 0 at padding."""
        projected: Tensor = self.text_projection(self.text_model(input_ids, attention_mask))
        return projected


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of images, b×c×h×w."""

    def forward(self, x: Tensor) -> Tensor:
        """b×c×h×w → b×c×h×w."""
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class VisionTower(nn.Module):
    """Stages of layers, each at half the resolution of the one before; the mean over the image comes out."""

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        widths, patch = sizes["hidden_sizes"], sizes["patch_size"]
        self.embeddings, self.encoder = nn.Module(), nn.Module()
        self.embeddings.patch_embeddings = nn.Conv2d(sizes["num_channels"], widths[0], patch, patch)
        self.embeddings.layernorm = ChannelNorm(widths[0], CHANNELS_EPS)
        before = [widths[0], *widths]
        self.encoder.stages = nn.ModuleList(
            Stage(*sizes_) for sizes_ in zip(before, widths, sizes["depths"], strict=False)
        )
        self.layernorm = nn.LayerNorm(widths[-1], sizes["layer_norm_eps"])

    def forward(self, pixels: Tensor) -> Tensor:
        """b×3×h×w → b×width."""
        parts: Any = self.embeddings
        stages: Any = self.encoder.stages
        x = parts.layernorm(parts.patch_embeddings(pixels))
        for stage in stages:
            x = stage(x)
        seen: Tensor = self.layernorm(x.mean(dim=(-2, -1)))
        return seen


class Stage(nn.Module):
    """Half the resolution, unless the width stays; then the layers."""

    def __init__(self, before: int, width: int, depth: int) -> None:
        super().__init__()
        halved = [] if before == width else [ChannelNorm(before, CHANNELS_EPS), nn.Conv2d(before, width, 2, 2)]
        self.downsampling_layer = nn.ModuleList(halved)
        self.layers = nn.ModuleList(ImageLayer(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """b×before×h×w → b×width×h'×w'."""
        for part in [*self.downsampling_layer, *self.layers]:
            x = part(x)
        return x


class ImageLayer(nn.Module):
    """A convolution of each channel, then two linear maps of each pixel's channels, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.layernorm = nn.LayerNorm(width, CHANNELS_EPS)
        self.pwconv1, self.pwconv2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """b×width×h×w → b×width×h×w."""
        inner = self.layernorm(self.dwconv(x).movedim(1, -1))
        added: Tensor = x + self.pwconv2(functional.relu(self.pwconv1(inner))).movedim(-1, 1)
        return added


class TextTower(nn.Module):
    """BERT: the first token comes out, through one more linear map."""

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        width, eps = sizes["hidden_size"], sizes["layer_norm_eps"]
        self.embeddings, self.encoder, self.pooler = nn.Module(), nn.Module(), nn.Module()
        self.embeddings.word_embeddings = embedding(sizes["vocab_size"], width)
        self.embeddings.position_embeddings = embedding(sizes["max_position_embeddings"], width)
        self.embeddings.token_type_embeddings = embedding(sizes["type_vocab_size"], width)
        self.embeddings.LayerNorm = nn.LayerNorm(width, eps)
        self.encoder.layer = nn.ModuleList(TextLayer(sizes) for _ in range(sizes["num_hidden_layers"]))
        self.pooler.dense = nn.Linear(width, width)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """m×l → m×width."""
        parts: Any = self.embeddings
        layers: Any = self.encoder.layer
        pooler: Any = self.pooler
        positions = parts.position_embeddings.weight[: tokens.shape[1]]
        x = parts.LayerNorm(parts.word_embeddings(tokens) + positions + parts.token_type_embeddings.weight[0])
        for layer in layers:
            x = layer(x, mask[:, None, None].bool())
        return torch.tanh(pooler.dense(x[:, 0]))


class TextLayer(nn.Module):
    """Attention and two linear maps, each added to its input and followed by a LayerNorm."""

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        width, inner, eps = sizes["hidden_size"], sizes["intermediate_size"], sizes["layer_norm_eps"]
        self.heads = sizes["num_attention_heads"]
        self.attention, self.intermediate, self.output = nn.Module(), nn.Module(), nn.Module()
        self.attention.self = nn.ModuleDict({name: nn.Linear(width, width) for name in ("query", "key", "value")})
        self.attention.output = nn.ModuleDict({"dense": nn.Linear(width, width), "LayerNorm": nn.LayerNorm(width, eps)})
        self.intermediate.dense = nn.Linear(width, inner)
        self.output.dense, self.output.LayerNorm = nn.Linear(inner, width), nn.LayerNorm(width, eps)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """m×l×width → m×l×width; mask: m×1×1×l, False at padding."""
        attention: Any = self.attention
        maps: Any = attention.self
        out: Any = self.output
        inner: Any = self.intermediate
        q, k, v = (maps[name](x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for name in ("query", "key", "value"))
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        x = attention.output["LayerNorm"](x + attention.output["dense"](seen))
        added: Tensor = out.LayerNorm(x + out.dense(functional.gelu(inner.dense(x))))
        return added
