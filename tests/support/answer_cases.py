"""Simulated answers: labelled batches with strangers, known labels and classes that cannot occur."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kedge.answers.answer import Answer
from kedge.arrays import unit
from kedge.features.text_head import TextHead
from kedge.methods.contract import UNKNOWN

SCALE = 10.0  # logit scale


def answer_of(x: Tensor, head: TextHead, **more: Any) -> Answer:
    """The answer of zero-shot, among the classes that can occur."""
    y = head.log_zero_shot(x).exp()
    present = more.get("present")
    z = y if present is None else torch.zeros_like(y).index_copy(1, present, y[:, present])
    return Answer(x, head, y, z / z.sum(dim=1, keepdim=True), **more)


def batch(n: int = 60, k: int = 6, noise: float = 1.0, strangers: int = 0) -> tuple[Tensor, TextHead]:
    """Unit features of n images, class after class, and their head; then strangers, which show nothing at all."""
    random = torch.Generator().manual_seed(n + k)
    t, aside, away = (unit(torch.randn(rows, 64, generator=random)) for rows in (k, n, strangers))
    return torch.cat([unit(t[torch.arange(n) % k] + noise * aside), away]), TextHead(t, SCALE)


def random_answer(seed: int, n: int = 40, k: int = 7, known: bool = True) -> Answer:
    """Probabilities without meaning, with ties; some labels known, some images known to show no class."""
    random = torch.Generator().manual_seed(seed)
    x, t = (unit(torch.randn(rows, 16, generator=random)) for rows in (n, k))
    z = torch.randint(1, 5, (n, k), generator=random).float()
    y = torch.randint(1, 5, (n, k), generator=random).float()
    given = torch.randint(-2, k, (n,), generator=random)
    given = torch.where(torch.rand(n, generator=random) < 0.7, UNKNOWN, given)
    z, y = z / z.sum(dim=1, keepdim=True), y / y.sum(dim=1, keepdim=True)
    return Answer(x, TextHead(t), y, z, given if known else None)
