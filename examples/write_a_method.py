"""
Write a method
==============

You have an idea for a method of your own, or want to add one from a paper. A method is a
frozen dataclass with two functions. It then works wherever a built-in method does:
``adapt``, streams, comparisons, the command line.
"""

# %%
# The idea
# --------
# If a batch has few classes, zero-shot still gives every class some probability. The example
# weights each class by how often it seems to occur in the batch, with one setting,
# ``strength``:
#
# .. code-block:: text
#
#    z = softmax( log ŷ + strength · log mean ŷ )     ŷ: zero-shot, n×k; mean over the batch
#
# The method
# ----------
# The fields of the dataclass are its settings. ``init`` gives the state before the first
# batch: this method keeps none. ``step`` labels one batch and returns the next state and the
# probabilities z, n×k. ``Batch`` is all that a method may look at: features, the text head,
# zero-shot. There are no labels in it.

from dataclasses import dataclass
from typing import ClassVar

import matplotlib.pyplot as plt
import torch

import kedge


@dataclass(frozen=True)
class Prior:
    """Zero-shot, weighted by how often each class seems to occur in the batch."""

    name: ClassVar[str] = "prior"
    traits: ClassVar[kedge.Traits] = kedge.Traits(
        paper="an example", year=2026, scope="batch", memory="none"
    )
    strength: float = 1.0

    def init(self, head: kedge.TextHead) -> None:
        """The state before the first batch: this method has none."""

    def step(self, state: None, batch: kedge.Batch) -> kedge.Step:
        """softmax( log ŷ + strength · log mean ŷ )."""
        log_y = batch.log_zero_shot
        log_prior = log_y.exp().mean(dim=0).log()
        return kedge.Step(None, torch.softmax(log_y + self.strength * log_prior, dim=1))


# %%
# Does it keep the contract?
# --------------------------
# ``check_method`` tries small batches: do the rows of z sum to 1, is the result the same
# twice, do images in another order give the same labels, and more. It returns nothing if all
# is well, and names every check that fails.

kedge.check_method(Prior())
print(f"{len(list(kedge.method_checks(Prior())))} checks passed")

# %%
# A common slip is to forget the softmax:


@dataclass(frozen=True)
class Slip(Prior):
    """The same, but z is not a probability."""

    name: ClassVar[str] = "slip"

    def step(self, state: None, batch: kedge.Batch) -> kedge.Step:
        """Wrong: the rows do not sum to 1."""
        y = batch.log_zero_shot.exp()
        return kedge.Step(None, y * y.mean(dim=0) ** self.strength)


try:
    kedge.check_method(Slip())
except kedge.ContractError as error:
    print(*str(error).splitlines()[:3], sep="\n")

# %%
# Is it any good?
# ---------------
# The method goes wherever a name goes. The features are simulated, from ``kedge.simulate``;
# on your own, take ``kedge.FeatureSet.load("features.safetensors")``.

features = kedge.simulate(n=2000, k=50, seed=0)
strengths = (0, 0.5, 1, 2, 3, 4)
situations = {
    "very-low": "1 to 4 classes in a batch",
    "medium": "5 to 25 classes in a batch",
    "all": "the whole set at once",
}
gains = {}
for scenario in situations:
    gains[scenario] = []
    for strength in strengths:
        record = kedge.evaluate(Prior(strength), features, scenario, seed=0, tasks=20)
        gains[scenario].append(100 * record.gain)
    print(f"{scenario:10}", "  ".join(f"{gain:+5.1f}" for gain in gains[scenario]))

# %%
# With strength 0 the method is zero-shot. Where few classes are present, strength helps, and
# the fewer the more. Where all are present, it does harm here.

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
colours = ("#2b6cb0", "#1a7f4b", "#d08a2e")
for scenario, colour in zip(situations, colours, strict=True):
    label = f"{scenario}: {situations[scenario]}"
    axes.plot(strengths, gains[scenario], "o-", color=colour, label=label)
axes.axhline(0, color="#8a8f98", linewidth=0.8)
axes.set(xlabel="strength", ylabel="gain over zero-shot, points")
axes.set_title("The method prior on simulated features")
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# What to remember
# ----------------
# One dataclass, two functions, one check. A method with a memory returns named tensors as its
# state; then streams can be saved and loaded. Announce it in your package, and ``kedge ls
# methods`` and ``--method prior`` know it:
#
# .. code-block:: toml
#
#    [project.entry-points."kedge.methods"]
#    prior = "my_package.prior:Prior"
#
# - What ``Batch``, ``Step`` and ``Traits`` hold: :doc:`/reference/python`
# - The built-in methods, with their equations: :doc:`/methods/index`
# - A comparison with other methods: :doc:`/gallery/compare_methods`
