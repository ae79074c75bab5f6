"""
A stream of images
==================

Images arrive batch after batch: from a camera, a microscope, an upload queue. Each batch
must be labelled before the next one comes, and what is shown changes slowly. A ``Stream``
labels each batch and remembers what the classes looked like.
"""

# %%
# Batches that follow each other
# ------------------------------
# The features are simulated: 3,000 images of 60 classes, from ``kedge.simulate``. A scenario
# of the benchmark puts them in an order in which images of one class come close together, and
# cuts them into batches of 128.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import kedge

# your own features instead, with labels to count by:
# kedge.FeatureSet.load("features.safetensors")
features = kedge.simulate(n=3000, k=60, seed=0)
# your own batches instead: the numbers of the images, in order of time
scenario = kedge.find_scenario("stream-high")
batches = scenario.episode(features.labels.numpy(), np.random.default_rng(0))

k = features.head.k
classes = [len(features.labels[batch].unique()) for batch in batches]
print(f"{len(batches)} batches, each with {min(classes)} to {max(classes)} of {k} classes")

# %%
# Label batch after batch
# -----------------------
# A stream is made from the text features alone: the images are not known yet. ``step`` takes
# the features of one batch. Beside it, each batch is labelled on its own, without memory.


def share(labels: torch.Tensor, truth: torch.Tensor) -> float:
    """The share of right labels."""
    return float((labels == truth).float().mean())


stream = kedge.Stream(features.head)  # or kedge.Stream(text_features), an array
right = {"zero-shot": [], "each batch alone": [], "stream": []}
for batch in batches:
    x, truth = features.image_features[batch], features.labels[batch]
    result = stream.step(x)
    alone = kedge.adapt(x, features.head)
    right["zero-shot"].append(share(result.zero_shot.argmax(dim=1), truth))
    right["each batch alone"].append(share(alone.labels, truth))
    right["stream"].append(share(result.labels, truth))

for name, shares in right.items():
    print(f"{name:17} {np.mean(shares):.1%} right in the mean of the batches")

# %%
# Along the stream
# ----------------
# Each line is the mean of the last five batches. The lower panel shows which classes are in a
# batch: the darker, the more images.

figure, (top, bottom) = plt.subplots(
    2, 1, figsize=(7, 5.2), sharex=True, layout="constrained"
)
numbers = np.arange(1, len(batches) + 1)
colours = ("#8a8f98", "#d08a2e", "#2b6cb0")
for (name, shares), colour in zip(right.items(), colours, strict=True):
    recent = [100 * np.mean(shares[max(0, i - 4) : i + 1]) for i in range(len(shares))]
    top.plot(numbers, recent, color=colour, label=name)
top.set(ylabel="accuracy, %", title="Mean of the last five batches (simulated features)")
top.legend(frameon=False)
top.spines[["top", "right"]].set_visible(False)
shown = np.stack([features.labels[batch].bincount(minlength=k) for batch in batches])
order = shown.argmax(axis=0).argsort(
    kind="stable"
)  # classes by the batch that has most of them
bottom.pcolormesh(numbers, np.arange(k), shown[:, order].T, cmap="Blues")
bottom.set(xlabel="batch", ylabel="class, in order of appearance")
bottom.invert_yaxis()
plt.show()

# %%
# Stop and continue
# -----------------
# A stream can be saved at any moment. It continues exactly where it was.

with tempfile.TemporaryDirectory() as folder:
    first = kedge.Stream(features.head)
    for batch in batches[:10]:
        first.step(features.image_features[batch])
    first.save(Path(folder) / "stream.safetensors")
    second = kedge.Stream.load(Path(folder) / "stream.safetensors")

x = features.image_features[batches[10]]
same = bool((first.step(x).probs == second.step(x).probs).all())
print(f"batch {second.steps}: the loaded stream gives the same probabilities: {same}")

# %%
# What to remember
# ----------------
# Use ``Stream`` where images come in an order. Most of the gain comes from the batch itself,
# since its images are of few classes; the memory adds a little. A batch of one image, as the
# first of a stream, stays at zero-shot's label. On simulated features the size of a gain says
# little about real images. To measure it on your own, see :doc:`/gallery/compare_methods`.
#
# - Which method for which stream: :doc:`/which_method`
# - What a person can say during a stream (``known``, ``present``, ``reject``):
#   :doc:`/guide/check`
# - Arrays, precision, devices: :doc:`/guide/features`
