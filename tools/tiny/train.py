"""Train kedge's bundled two-tower model on Fashion-MNIST's training images and generated captions.

    OMP_WAIT_POLICY=passive python tools/tiny/train.py --out src/kedge/data/tiny/model

An ordinary CLIP: a ViT of 28×28 pixels in patches of 7, a causal text transformer, and the symmetric contrastive loss

    L = ½ [CE(s X Tᵀ, Q) + CE(s T Xᵀ, Qᵀ)],   s = exp(logit_scale), learned

over unit features X, T (b×d) of a batch. Q (b×b) is the identity, except that equal captions share the mass.
After training, s is set to the value with the lowest negative log-likelihood of plain zero-shot prompts on held-out
training images without augmentation. No test image is read, and no augmentation resembles the shift of the test images:
small crops and scales, ±4°, flips, mild brightness and contrast, erasing. The directory is a loadable model after every
epoch. The same seed gives the same model on the same machine and libraries; elsewhere the weights
differ slightly.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path
from typing import Any

import captions
import numpy as np
import tokens
import torch
from fashion import CLASSES, DIRECTORY, HELD_OUT, read
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer, CLIPConfig, CLIPModel, PreTrainedTokenizerBase

PROMPT = "a photo of a {}."
MEAN, STD = 0.286, 0.353  # of the training images' pixels
DIMENSION, SIDE = 128, 28
BATCH, RATE, DECAY, WARM_UP, LARGEST_SCALE = 256, 1e-3, 0.05, 0.05, 100.0


def new_model(tokenizer: PreTrainedTokenizerBase) -> CLIPModel:
    """An untrained model for this tokenizer's vocabulary."""
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    text: dict[str, Any] = {
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    vision: dict[str, Any] = {
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    text["hidden_act"] = vision["hidden_act"] = "gelu"  # one kernel; CLIP's quick_gelu takes three
    size = {"vocab_size": len(tokenizer), "max_position_embeddings": tokens.MAX_TOKENS}
    config = CLIPConfig(
        text_config={**text, **size, **ends, "pad_token_id": tokenizer.pad_token_id, "projection_dim": DIMENSION},
        vision_config={**vision, "image_size": SIDE, "patch_size": 7, "projection_dim": DIMENSION},
        projection_dim=DIMENSION,
    )
    return CLIPModel(config)


def embed_images(model: CLIPModel, grey: Tensor) -> Tensor:
    """Unit features (b×d) of grey images (b×28×28, 0 to 1)."""
    pixels = ((grey - MEAN) / STD).unsqueeze(1).expand(-1, 3, -1, -1)
    return functional.normalize(model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output))


def embed_texts(model: CLIPModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> Tensor:
    """Unit features (m×d) of texts."""
    ids = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")["input_ids"]
    return functional.normalize(model.text_projection(model.text_model(input_ids=ids).pooler_output))


def augment(grey: Tensor) -> Tensor:
    """Random flip, scale, shift, small turn, brightness, contrast, and an erased rectangle (b×28×28 → the same)."""
    b = len(grey)
    scale, turn = torch.empty(b).uniform_(0.88, 1.15), torch.empty(b).uniform_(-4, 4).deg2rad()
    flip = torch.randint(0, 2, (b,)) * 2.0 - 1
    rows = torch.stack((turn.cos() * flip, -turn.sin(), turn.sin() * flip, turn.cos()), 1).view(b, 2, 2)
    theta = torch.cat((rows * scale.view(b, 1, 1), torch.empty(b, 2, 1).uniform_(-0.14, 0.14)), 2)
    grid = functional.affine_grid(theta, [b, 1, SIDE, SIDE], align_corners=False)
    moved = functional.grid_sample(grey.unsqueeze(1), grid, align_corners=False).squeeze(1)
    level = moved.mean((1, 2), keepdim=True)
    moved = (moved - level) * torch.empty(b, 1, 1).uniform_(0.85, 1.15) + level
    moved = (moved * torch.empty(b, 1, 1).uniform_(0.85, 1.15)).clamp(0, 1)
    place = torch.arange(SIDE)
    corner, extent = torch.randint(0, SIDE - 4, (2, b, 1)), torch.randint(3, 9, (2, b, 1))
    in_row, in_column = ((place >= corner) & (place < corner + extent)).unbind()
    erased = (in_row.unsqueeze(2) & in_column.unsqueeze(1)) & (torch.rand(b, 1, 1) < 0.3)
    return moved.masked_fill(erased, 0.0)


def contrastive_loss(x: Tensor, t: Tensor, scale: Tensor, texts: list[str]) -> Tensor:
    """CLIP's loss (see the module) for unit features x, t (b×d)."""
    number = {text: i for i, text in enumerate(texts)}
    ids = torch.tensor([number[text] for text in texts])
    same = (ids.unsqueeze(0) == ids.unsqueeze(1)).float()
    target = same / same.sum(1, keepdim=True)  # symmetric: equal captions have equal counts
    logits = scale * x @ t.T
    return (functional.cross_entropy(logits, target) + functional.cross_entropy(logits.T, target)) / 2


@torch.no_grad()
def zero_shot(model: CLIPModel, tokenizer: PreTrainedTokenizerBase, grey: Tensor) -> Tensor:
    """Cosines (n×10) of images and plain prompts."""
    model.eval()
    t = embed_texts(model, tokenizer, [PROMPT.format(name) for name in CLASSES])
    return torch.cat([embed_images(model, part) for part in grey.split(1000)]) @ t.T


def calibrated_scale(cosines: Tensor, labels: Tensor) -> float:
    """The logit scale with the lowest negative log-likelihood."""

    def loss(log_scale: float) -> float:
        return float(functional.cross_entropy(math.exp(log_scale) * cosines.double(), labels))

    return math.exp(minimize_scalar(loss, bounds=(0, math.log(LARGEST_SCALE)), method="bounded").x)


def save(model: CLIPModel, directory: Path, scale: float) -> None:
    """Half-precision weights with this logit scale, and the preprocessing; loads as float32."""
    half = {name: value.detach().half() for name, value in model.state_dict().items()}
    half["logit_scale"] = torch.tensor(math.log(scale)).half()
    model.save_pretrained(directory, state_dict=half)
    (directory / "model.safetensors").chmod(0o644)  # it is written readable by the owner only
    config = json.loads((directory / "config.json").read_text())
    config.pop("torch_dtype", None)
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


def main() -> None:
    """Train, calibrate, save."""
    parser = argparse.ArgumentParser(description="Train kedge's bundled model.")
    parser.add_argument("--data", type=Path, default=DIRECTORY, help="directory of Fashion-MNIST's four .gz files")
    parser.add_argument("--out", type=Path, required=True, help="the transformers directory to write")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    rng = random.Random(options.seed)

    raw, labels = read(options.data, "train")
    adjectives = captions.attributes(raw, labels)
    grey, classes = torch.from_numpy(raw.astype(np.float32) / 255), torch.from_numpy(labels)
    n = len(grey) - HELD_OUT

    def say(i: int) -> str:
        return captions.caption(int(labels[i]), adjectives[i], rng)

    tokens.write([say(i) for i in range(n)], options.out)
    tokenizer = AutoTokenizer.from_pretrained(options.out)
    model = new_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)
    decayed = [p for p in model.parameters() if p.ndim > 1]  # no weight decay for norms, biases and the logit scale
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98))
    steps = options.epochs * (n // BATCH)
    warm = WARM_UP * steps

    def rate(step: int) -> float:
        return (step + 1) / warm if step < warm else 0.5 + 0.5 * math.cos(math.pi * (step - warm) / (steps - warm))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    start = time.monotonic()
    for epoch in range(1, options.epochs + 1):
        model.train()
        total = 0.0
        for batch in torch.randperm(n)[: n // BATCH * BATCH].split(BATCH):
            texts = [say(i) for i in batch.tolist()]
            x, t = embed_images(model, augment(grey[batch])), embed_texts(model, tokenizer, texts)
            loss = contrastive_loss(x, t, model.logit_scale.exp(), texts)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                model.logit_scale.clamp_(max=math.log(LARGEST_SCALE))
            total += loss.item() * BATCH / n
        cosines = zero_shot(model, tokenizer, grey[n:])
        accuracy = float((cosines.argmax(1) == classes[n:]).float().mean())
        scale, learned = calibrated_scale(cosines, classes[n:]), model.logit_scale.exp().item()
        save(model, options.out, scale)
        print(
            f"epoch {epoch}: loss {total:.3f}, held-out zero-shot {accuracy:.2%}, logit scale learned {learned:.2f}, "
            f"calibrated {scale:.2f}, {time.monotonic() - start:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
