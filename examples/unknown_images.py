"""
Images of something else
========================

Some of your images show none of your classes: a new species, a product that is not in the
list, a hand before the lens. Every image gets a label all the same. You want to find these
images and take them out.
"""

# %%
# Five classes are missing from the list
# --------------------------------------
# The pictures come with kedge and are simulated: drawings of 20 classes, photographed by a
# program. Five of the 20 names, drawn at random, are left out of the list: a quarter of the
# pictures show none of the classes.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import kedge

temporary = tempfile.TemporaryDirectory()
here = Path(temporary.name)
# your own images: scores = kedge.classify("my/photos", ["cat", "dog"]).result.none
photos = kedge.pictures(here / "photos")
features = kedge.extract(photos, encoder="tiny", out=here / "features.safetensors")
names = features.head.class_names


def list_without_five(seed: int) -> tuple[kedge.TextHead, torch.Tensor]:
    """The classes of a list that lacks five, and which images are of those five."""
    listed = torch.from_numpy(np.random.default_rng(seed).permutation(len(names))[5:])
    return features.head.select(listed), ~torch.isin(features.labels, listed)


head, strange = list_without_five(seed=0)
missing = [name for name in names if name not in head.class_names]
print("not in the list:", ", ".join(missing))

# %%
# The score ``none``
# ------------------
# A session labels the images with the classes of this list. Each image gets a score from 0 to
# 1: does it show none of the classes? It compares the image with those that surely show their
# label. With your own list, ``kedge.classify(photos, classes)`` gives the same:
# ``found.result.none``.

session = kedge.Session(features)
result = session.solve(head=head)
print(result.verdict.sentence)

figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
bins = np.geomspace(1e-6, 1, 49)
scores = result.none.clamp(min=1e-6)
look = {"bins": bins, "alpha": 0.7}
axes.hist(scores[~strange], color="#2b6cb0", label="shows a class of the list", **look)
axes.hist(scores[strange], color="#d08a2e", label="shows none of them", **look)
axes.axvline(0.5, color="#5b646e", linestyle=":", label="0.5")
axes.set(xscale="log", xlabel="score none", ylabel="images (simulated)")
figure.legend(frameon=False, ncols=3, loc="outside upper center")
axes.spines[["top", "right"]].set_visible(False)
plt.show()

above = result.none > 0.5
caught, wrongly = int(above[strange].sum()), int(above[~strange].sum())
print(f"above 0.5: {caught} of {int(strange.sum())} strange images, and {wrongly} others")

# %%
# The verdict does not notice, and the threshold is of no use here: a drawing of a thing that
# is not in the list is too much like the others. But the *order* is good: strange images are in
# front.
#
# Look at the highest scores
# --------------------------
# Below each picture are its label and its score. Orange: the image is strange. Blue: it is
# not.

order = result.none.argsort(descending=True).tolist()
figure, places = plt.subplots(2, 6, figsize=(9, 4.4), layout="constrained")
for place, i in zip(places.flat, order, strict=False):
    place.imshow(plt.imread(photos / features.paths[i]))
    place.set_axis_off()
    label = f"{head.class_names[result.labels[i]]}?\n{float(result.none[i]):.2f}"
    place.set_title(
        label, y=-0.36, fontsize=11, color="#b06a10" if strange[i] else "#2b6cb0"
    )
plt.show()


def area(scores: torch.Tensor, strange: torch.Tensor) -> float:
    """AUROC: how often a strange image scores higher than another; 0.5 is chance."""
    return float((scores[strange][:, None] > scores[~strange]).double().mean())


print(f"{int(strange[order[:40]].sum())} of the 40 highest scores are of strange images")
print(f"AUROC {area(result.none, strange):.2f}")

# %%
# Was this a lucky draw of the five names? Nine others:

others = []
for seed in range(1, 10):
    other, is_strange = list_without_five(seed)
    others.append(area(session.solve(head=other).none, is_strange))
print(f"mean AUROC {np.mean(others):.2f}, from {min(others):.2f} to {max(others):.2f}")

# %%
# Say what they are
# -----------------
# Look at the 40 images with the highest scores and mark those that show none of the classes
# with ``kedge.NONE``. They are taken out, and the rest is labelled without them.

marked = {i: kedge.NONE for i in order[:40] if strange[i]}
after = session.solve(known=marked, head=head)


def right(labels: torch.Tensor) -> float:
    """The share of right labels among images of the listed classes."""
    found = [labels[i] >= 0 and head.class_names[labels[i]] for i in range(len(labels))]
    truth = [names[j] for j in features.labels]
    return np.mean([found[i] == truth[i] for i in range(len(truth)) if not strange[i]])


left = int((after.labels[strange] >= 0).sum())
print(
    f"{len(marked)} marked; {left} of {int(strange.sum())} strange images still have a label"
)
before, now = right(result.labels), right(after.labels)
print(f"of the others, {before:.1%} were right before, {now:.1%} are right now")

# %%
# Images of another kind
# ----------------------
# Here 60 images of coloured noise come in among the drawings, and the list is whole.
# ``reject=0.5`` takes out what is above the threshold, without a person.

random = np.random.default_rng(0)
noise = random.normal(size=(60, 12, 12, 3)).repeat(8, axis=1).repeat(8, axis=2)
images = list((128 + 60 * noise).clip(0, 255).astype(np.uint8))
strangers = kedge.extract(
    images, list(names), encoder="tiny", out=here / "noise.safetensors"
)
together = torch.cat([features.image_features, strangers.image_features])
is_noise = torch.arange(len(together)) >= len(features)
cleaned = kedge.adapt(together, features.head, reject=0.5)
taken = cleaned.labels == -1
caught, wrongly = int(taken[is_noise].sum()), int(taken[~is_noise].sum())
print(
    f"taken out: {caught} of 60 images of noise, and {wrongly} of {len(features)} drawings"
)
print(f"AUROC {area(cleaned.none, is_noise):.2f}")
alone = kedge.adapt(strangers)
print(f"the noise as a batch of its own: {alone.verdict.level}")
temporary.cleanup()
# sphinx_gallery_thumbnail_number = 2

# %%
# Again the order is good and the threshold too high: it is made to spare images that show a
# class. The noise alone, as a batch of its own, is recognised as such: the small model knows
# what its pictures look like. Other encoders do not say that.
#
# What to remember
# ----------------
# Sort by ``none`` and look at the highest scores; use the order, not the threshold. Images
# that resemble the classes are ranked, not caught. A good verdict is no proof that the list
# is whole.
#
# - How good the score is on real images, and where it fails: :doc:`/honest`
# - On the command line, ``kedge adapt … --reject 0.5``, or "none" as a known label:
#   :doc:`/guide/check`
# - With the page, "none of these" is a button: :doc:`/page`
