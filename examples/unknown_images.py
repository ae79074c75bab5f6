"""
Images of something else
========================

Some of your images show none of your classes: a new species, a product that is not in the list, a hand before
the lens. Every image gets a label all the same. You want to find these images and take them out.
"""

# %%
# Five classes are missing from the list
# --------------------------------------
# The pictures come with kedge and are simulated: drawings of 20 classes, photographed by a program. Five of the
# 20 names, drawn at random, are left out of the list: a quarter of the pictures show none of the classes.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import kedge

temporary = tempfile.TemporaryDirectory()
photos = kedge.pictures(Path(temporary.name) / "photos")  # your own: a folder with or without sub-folders
features = kedge.extract(photos, encoder="tiny", out=Path(temporary.name) / "features.safetensors")
names = features.head.class_names


def list_without_five(seed: int) -> tuple[kedge.TextHead, torch.Tensor]:
    """The classes of a list that lacks five, and which images are of those five."""
    listed = torch.from_numpy(np.random.default_rng(seed).permutation(len(names))[5:])
    return features.head.select(listed), ~torch.isin(features.labels, listed)


head, strange = list_without_five(seed=0)
print("not in the list:", ", ".join(name for name in names if name not in head.class_names))

# %%
# The score ``none``
# ------------------
# A session labels the images with the classes of this list. Each image gets a score from 0 to 1: does it show
# none of the classes? It compares the image with those that surely show their label. With your own list,
# ``kedge.classify(photos, classes)`` gives the same: ``found.result.none``.

session = kedge.Session(features)
result = session.solve(head=head)
print(result.verdict.sentence)

figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
bins = np.linspace(0, max(0.5, float(result.none.max())), 41)
axes.hist(result.none[~strange], bins, color="#2b6cb0", alpha=0.75, label="shows a class of the list")
axes.hist(result.none[strange], bins, color="#d08a2e", alpha=0.75, label="shows none of them")
axes.axvline(0.5, color="#8a8f98", linestyle=":", label="above: taken for a stranger")
axes.set(xlabel="score none", ylabel="images (simulated pictures)")
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
plt.show()

above = result.none > 0.5
caught, wrongly = int(above[strange].sum()), int(above[~strange].sum())
print(f"above 0.5: {caught} of {int(strange.sum())} strange images, and {wrongly} others")

# %%
# The verdict does not notice, and the threshold catches nothing: a drawing of a thing that is not in the list is
# too much like the others. But the *order* is good: strange images are in front.
#
# Look at the highest scores
# --------------------------
# Orange labels are those of strange images.

order = result.none.argsort(descending=True).tolist()
figure, places = plt.subplots(2, 6, figsize=(9, 4.2), layout="constrained")
for place, i in zip(places.flat, order, strict=False):
    place.imshow(plt.imread(photos / features.paths[i]))
    place.set_axis_off()
    below = {"fontsize": 10, "ha": "center", "va": "top", "transform": place.transAxes}
    label = f"{head.class_names[result.labels[i]]}? {float(result.none[i]):.2f}"
    place.text(0.5, -0.04, label, color="#b06a10" if strange[i] else "#2b6cb0", **below)
plt.show()


def area(scores: torch.Tensor, strange: torch.Tensor) -> float:
    """AUROC: how often a strange image has a higher score than another; 0.5 is chance, 1 is perfect."""
    return float((scores[strange][:, None] > scores[~strange]).double().mean())


print(f"of the 40 highest scores, {int(strange[order[:40]].sum())} are strange; AUROC {area(result.none, strange):.2f}")

# %%
# Was this a lucky draw of the five names? Nine others:

others = []
for seed in range(1, 10):
    other, is_strange = list_without_five(seed)
    others.append(area(session.solve(head=other).none, is_strange))
print(f"AUROC of nine other draws: mean {np.mean(others):.2f}, from {min(others):.2f} to {max(others):.2f}")

# %%
# Say what they are
# -----------------
# Look at the 40 images with the highest scores and mark those that show none of the classes with ``kedge.NONE``.
# They are taken out, and the rest is labelled without them.

marked = {i: kedge.NONE for i in order[:40] if strange[i]}
after = session.solve(known=marked, head=head)
truth = [names[j] for j in features.labels]


def right(labels: torch.Tensor) -> float:
    """The share of right labels among the images of the listed classes."""
    return float(np.mean([head.class_names[labels[i]] == truth[i] for i in range(len(truth)) if not strange[i]]))


left = int((after.labels[strange] >= 0).sum())
print(f"{len(marked)} marked; {left} strange images still have a label, {int(strange.sum())} had one before")
print(f"images of the listed classes: {right(result.labels):.1%} right before, {right(after.labels):.1%} after")

# %%
# Images of another kind
# ----------------------
# Here 60 images of coloured noise come in among the drawings, and the list is whole. ``reject=0.5`` takes out
# what is above the threshold, without a person.

random = np.random.default_rng(0)
noise = random.normal(size=(60, 12, 12, 3)).repeat(8, axis=1).repeat(8, axis=2)
images = list((128 + 60 * noise).clip(0, 255).astype(np.uint8))
strangers = kedge.extract(images, list(names), encoder="tiny", out=Path(temporary.name) / "noise.safetensors")
together = torch.cat([features.image_features, strangers.image_features])
is_noise = torch.arange(len(together)) >= len(features)
cleaned = kedge.adapt(together, features.head, reject=0.5)
taken = cleaned.labels == -1
caught, wrongly = int(taken[is_noise].sum()), int(taken[~is_noise].sum())
print(f"taken out: {caught} of {int(is_noise.sum())} images of noise, and {wrongly} of {len(features)} drawings")
print(f"AUROC {area(cleaned.none, is_noise):.2f}")
print("the noise alone:", kedge.adapt(strangers).verdict.sentence)
temporary.cleanup()

# %%
# Again the order is good and the threshold too high: it is made to spare images that show a class. The noise
# alone, as a batch of its own, is recognised as such: the small model knows what its pictures look like. Other
# encoders do not say that.
#
# What to remember
# ----------------
# Sort by ``none`` and look at the highest scores; use the order, not the threshold. Images that resemble the
# classes are ranked, not caught. A good verdict is no proof that the list is whole.
#
# - How good the score is on real images, and where it fails: :doc:`/honest`
# - On the command line, ``kedge adapt … --reject 0.5``, or "none" as a known label: :doc:`/guide/check`
# - With the page, "none of these" is a button: :doc:`/page`
