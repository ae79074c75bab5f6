"""Train the model on the drawings and their captions.

    OMP_WAIT_POLICY=passive python tools/tiny/train.py WORK --steps 2400

Two towers of transformers in a VisionTextDualEncoderModel, and the loss

    L = ½ [CE(s X Tᵀ, Q) + CE(s T Xᵀ, Qᵀ)] + a CE(s [X; T] Pᵀ, c),   s = exp(logit_scale), learned

over unit features X (2b×d) and T (b×d): b concepts, two drawings and one caption each. The first part is CLIP's; Q
shares the mass among equal captions. The second compares both with learned unit prototypes P of all concepts c, so that
images and texts find a common space sooner; its weight a falls from 2 to 0, and P is not kept. The augmentation goes
from easy to hard.

The logit scale is set at the end so that plain prompts are as confident as they are right, in the mean over pictures of
the held-out drawings. No drawing of the test style is read. WORK/model is a loadable model after every measurement.
WORK/train.pt has all that is needed to go on after an interruption: the same command resumes. On a busy machine keep to
one thread: two wait for each other.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import tokens
import torch
from art import held_out_pictures, load_art
from augment import augment
from captions import PROMPT, Captions
from concepts import read_concepts
from scipy.optimize import brentq
from torch import Tensor, nn
from torch.nn import functional
from towers import DIMENSION, SIDE, embed_images, embed_texts, new_model, save
from transformers import AutoTokenizer

BATCH, RATE, DECAY, WARM_UP, LARGEST_SCALE = 128, 1.2e-3, 0.1, 50, 100.0
MEASURE, CHECKPOINT = 200, 100  # steps; seconds
COPIES, HELD_OUT_SEED = 10, 0  # of the held-out drawings


def contrastive_loss(x: Tensor, t: Tensor, scale: Tensor, texts: list[str]) -> Tensor:
    """CLIP's loss of unit features x (2b×d) of images and t (b×d) of their captions."""
    number = {text: i for i, text in enumerate(texts)}
    ids = torch.tensor([number[text] for text in texts])
    same = (ids.repeat(2).unsqueeze(1) == ids.unsqueeze(0)).float()
    logits = scale * x @ t.T
    images = functional.cross_entropy(logits, same / same.sum(1, keepdim=True))
    return (images + functional.cross_entropy(logits.T, same.T / same.T.sum(1, keepdim=True))) / 2


@torch.no_grad()
def held_out(model: Any, tokenizer: Any, pictures: Tensor, concepts: Tensor) -> tuple[float, float]:
    """Zero-shot accuracy among all concepts, and the logit scale at which the mean confidence equals it."""
    model.eval()
    t = embed_texts(model, tokenizer, [PROMPT.format(concept.name) for concept in read_concepts()])
    cosines = torch.cat([embed_images(model, part) for part in pictures.split(500)]) @ t.T
    model.train()
    accuracy = float((cosines.argmax(1) == concepts).float().mean())
    scale = brentq(lambda s: float((s * cosines).softmax(1).amax(1).mean()) - accuracy, 0, LARGEST_SCALE)
    return accuracy, scale


def main() -> None:
    """Train, or go on training."""
    parser = argparse.ArgumentParser(description="Train kedge's bundled model.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    out, checkpoint = options.work / "model", options.work / "train.pt"

    art = load_art(options.work, "train", SIDE)
    unseen = held_out_pictures(load_art(options.work, "held-out", SIDE), SIDE, COPIES, HELD_OUT_SEED)
    rows_of = [(art.concepts == i).nonzero().squeeze(1) for i in range(len(read_concepts()))]
    captions = Captions(options.work, options.seed)
    tokens.write([captions(i) for _ in range(30) for i in range(len(rows_of))], out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    model = new_model(tokenizer)
    prototypes = nn.Linear(DIMENSION, len(rows_of), bias=False)
    parts = nn.ModuleDict({"model": model, "prototypes": prototypes})
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{len(art.drawings):,} drawings, {parameters:,} parameters, {len(tokenizer)} tokens", flush=True)
    decayed = [p for p in parts.parameters() if p.ndim > 1]  # no weight decay for norms, biases and the logit scale
    others = [p for p in parts.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98))
    step, losses = 0, [0.0]
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=False)
        parts.load_state_dict(saved["parts"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["torch"])
        captions.rng.setstate(saved["captions"])
        step = saved["step"]
        print(f"going on after step {step}", flush=True)

    def keep() -> None:
        state = {"parts": parts.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save({**state, "torch": torch.get_rng_state(), "captions": captions.rng.getstate()}, f"{checkpoint}.new")
        Path(f"{checkpoint}.new").replace(checkpoint)

    def measure() -> None:
        accuracy, scale = held_out(model, tokenizer, *unseen)
        save(model, out, scale)
        print(
            f"step {step}: loss {np.mean(losses[-MEASURE:]):.3f}, held-out zero-shot {accuracy:.1%}, logit scale "
            f"learned {model.logit_scale.exp().item():.1f}, calibrated {scale:.1f}, {time.monotonic() - start:.0f} s, "
            f"CPU {time.process_time():.0f} s",
            flush=True,
        )

    start, kept = time.monotonic(), time.monotonic()
    parts.train()
    while step < options.steps:
        progress = step / options.steps
        rate = RATE * min(1, (step + 1) / WARM_UP) * (0.505 + 0.5 * math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group["lr"] = rate
        chosen = torch.randperm(len(rows_of))[:BATCH].tolist()
        rows = torch.stack([rows_of[i][torch.randint(len(rows_of[i]), ())] for i in [*chosen, *chosen]])
        texts = [captions(i) for i in chosen]
        pictures = augment(art.drawings[rows], SIDE, min(1.0, 0.4 + 1.5 * progress))
        with torch.autocast("cpu", torch.bfloat16):
            x, t = embed_images(model, pictures), embed_texts(model, tokenizer, texts)
        scale = model.logit_scale.exp()
        concepts = torch.tensor(chosen)
        to_prototypes = scale * torch.cat((x, t)) @ functional.normalize(prototypes.weight).T
        helped = functional.cross_entropy(to_prototypes, concepts.repeat(3), label_smoothing=0.1)
        loss = contrastive_loss(x, t, scale, texts)
        optimizer.zero_grad(set_to_none=True)
        (loss + 2 * (1 - progress) * helped).backward()
        nn.utils.clip_grad_norm_(parts.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=math.log(LARGEST_SCALE))
        step += 1
        losses.append(loss.item())
        if step % MEASURE == 0:
            measure()
        if time.monotonic() - kept > CHECKPOINT:
            keep()
            kept = time.monotonic()
    keep()
    measure()


if __name__ == "__main__":
    main()
