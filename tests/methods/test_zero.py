"""ZERO at its limits, against a plain version of its rules, and its broken ties one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import kedge
from cases import simulated, with_views
from kedge import Batch, TextHead
from kedge.labelling.check_method import check_method
from kedge.methods.solve import views as views_module
from kedge.methods.zero import Zero


def plain_votes(views: Tensor, t: Tensor, confident: float) -> list[float]:
    """The rules in words, for one image."""
    y = torch.softmax(10.0 * views @ t.T, dim=1)
    entropies = [-float((p * p.log()).sum()) for p in y]
    order = sorted(range(len(views)), key=lambda j: entropies[j])
    voters = int(confident * len(views))
    votes = [0.0] * len(t)
    for j in order[:voters]:
        votes[int(y[j].argmax())] += 1
    tied = [c for c in range(len(t)) if votes[c] == max(votes)]
    if len(tied) == 1:
        return votes
    for j in order[voters:]:
        if int(y[j].argmax()) in tied:
            votes[int(y[j].argmax())] += 1
            return votes
    asked = y[order[voters] if voters < len(views) else order[0]]
    votes[max(tied, key=lambda c: float(asked[c]))] += 1
    return votes


@pytest.mark.parametrize("confident", [0.0, 0.05, 0.2, 0.3, 0.5, 1.0])
def test_against_the_rules_in_words(confident: float) -> None:
    batch, t = with_views(n=60, v=11, noise=0.9)
    assert batch.views is not None
    ours = Zero(confident=confident).votes(batch)
    assert ours.tolist() == [plain_votes(views, t, confident) for views in batch.views]
    by_views = sum(int(confident * 11) < sum(votes) for votes in ours.tolist())
    assert 0 < by_views <= 60  # ties are broken


def votes_of(*pulls: tuple[float, float, float], confident: float) -> list[float]:
    """The votes of views whose logits are given, three classes; the prototypes are the axes."""
    views = torch.tensor([*pulls], dtype=torch.float64)
    views = torch.cat([views, (4 - views.square().sum(dim=1, keepdim=True)).sqrt()], dim=1) / 2
    head = TextHead(torch.eye(3, 4, dtype=torch.float64), 2.0)
    return Zero(confident=confident).votes(Batch(views[:1], head, views[None]))[0].tolist()


A, B, C = (1.5, 0.0, 0.0), (0.0, 1.5, 0.0), (0.0, 0.0, 1.0)  # sure of a class; C is less sure


def test_a_majority_wins() -> None:
    assert votes_of(A, B, A, (0.5, 0.6, 0.0), confident=0.75) == [2, 1, 0]


def test_the_next_view_that_names_a_tied_class_decides() -> None:
    likes_second = (0.2, 0.5, 0.0)
    assert votes_of(A, B, C, likes_second, confident=0.5) == [1, 2, 0]  # C is next, but not tied


def test_the_next_view_chooses_if_none_names_a_tied_class() -> None:
    assert votes_of(A, B, (0.1, 0.2, 0.9), C, confident=0.5) == [2, 1, 0]  # C is next, and likes both alike: the first
    assert votes_of(A, B, (0.1, 0.2, 1.4), C, confident=0.5) == [1, 2, 0]


def test_the_most_confident_view_chooses_if_all_have_voted() -> None:
    assert votes_of(B, (1.6, 0.0, 0.0), confident=1.0) == [2, 1, 0]


@pytest.mark.parametrize("v", [1, 2, 3])
def test_few_views_leave_it_to_the_most_confident(v: int) -> None:
    """⌊0.3 v⌋ is 0: one-hot, the label of the view with the lowest entropy."""
    batch, _ = with_views(n=20, v=v)
    assert batch.views is not None
    log_y = torch.stack([Batch(views, batch.head).log_zero_shot for views in batch.views])
    best = (log_y.exp() * log_y).sum(dim=2).argmax(dim=1)
    z = Zero().step(None, batch).z
    assert torch.equal(z.amax(dim=1), torch.ones(20, dtype=torch.float64))
    assert torch.equal(z.argmax(dim=1), log_y[torch.arange(20), best].argmax(dim=1))


def test_one_view_has_the_label_of_zero_shot() -> None:
    batch, _ = with_views(v=1)
    assert torch.equal(Zero().step(None, batch).z.argmax(dim=1), batch.log_zero_shot.argmax(dim=1))


def test_shares_of_votes() -> None:
    batch, _ = with_views(n=30, v=64)
    votes, z = Zero().votes(batch), Zero().step(None, batch).z
    assert set(votes.sum(dim=1).tolist()) <= {19, 20}  # ⌊0.3 · 64⌋ views, and one vote more where classes are tied
    torch.testing.assert_close(z, votes / votes.sum(dim=1, keepdim=True), atol=0, rtol=0)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, _ = with_views()
    whole = Zero().step(None, batch).z
    monkeypatch.setattr(views_module, "BLOCK", 1)
    assert torch.equal(Zero().step(None, batch).z, whole)


def test_refused_without_views() -> None:
    with pytest.raises(kedge.InputError, match="method 'zero' needs augmented views, and there are none"):
        kedge.adapt(*simulated(4, 3), "zero")


def test_contract() -> None:
    check_method(Zero())
