"""
Correct and continue
====================

The labels are good, but not good enough. You are willing to look at some images and say
what they show. Which ones should you look at, and how much do the other images gain from
it?
"""

# %%
# The images and a session
# ------------------------
# The pictures come with kedge and are simulated: drawings of 20 classes, photographed by a
# program. The list has 178 names. A ``Session`` labels the same images again and again,
# quickly: it computes what does not change only once.
#
# To run this page on your own images, change the line that is marked and leave ``encoder``
# out. They must be in folders named by their class, because the page counts which labels are
# right; kedge itself does not need that.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import kedge

temporary = tempfile.TemporaryDirectory()
here = Path(temporary.name)
names = here / "names.txt"
# your own images instead: photos, names = Path("my/photos"), "my/names.txt"
photos = kedge.pictures(here / "photos", names=names)
features = kedge.extract(photos, names, encoder="tiny", out=here / "features.safetensors")
session = kedge.Session(features)
start = session.solve()
truth, classes = features.labels, features.head.class_names
right = float((start.labels == truth).float().mean())
print(f"{right:.1%} of the labels are right before any correction")

# %%
# What to look at first
# ---------------------
# ``result.review`` lists the images most worth a look: first a typical image of each class
# that is in doubt. In this example the person is a program that knows the true labels. Below
# each picture is kedge's label: green if right, red with the true label if wrong.

figure, places = plt.subplots(2, 6, figsize=(9, 4.4), layout="constrained")
for place, i in zip(places.flat, start.review.tolist(), strict=False):
    place.imshow(plt.imread(photos / features.paths[i]))
    place.set_axis_off()
    said, is_really = classes[start.labels[i]], classes[truth[i]]
    right = said == is_really
    text = f"{said}\nright" if right else f"{said}\nis {is_really}"
    place.set_title(text, y=-0.36, fontsize=11, color="#1a7f4b" if right else "#b3261e")
plt.show()

# %%
# Correct some, and solve again
# -----------------------------
# Known labels are a dictionary, from the image's number to its class. Images that look alike
# follow.

known = {i: classes[truth[i]] for i in start.review[:10].tolist()}
after = session.solve(known=known)
others = [i for i in range(len(features)) if i not in known]
moved = [i for i in others if after.labels[i] != start.labels[i]]
better = sum(bool(after.labels[i] == truth[i]) for i in moved)
worse = sum(bool(start.labels[i] == truth[i]) for i in moved)
print(f"10 images looked at, and {len(moved)} others changed their label:")
print(f"{better} became right, {worse} became wrong")

# %%
# How far it goes
# ---------------
# Three ways to spend the same effort: take the images in review order, take them at random,
# or first take out the classes that are not there (``present``) and then go on in review
# order.


def correct(order: str, present: list[str] | None = None) -> tuple[list, list]:
    """Look at 40 images, ten at a time; returns which, and the labels at each step."""
    random = np.random.default_rng(0).permutation(len(features)).tolist()
    seen, steps = [], []
    for _ in range(5):
        known = {i: classes[truth[i]] for i in seen}
        result = session.solve(known=known, present=present)
        steps.append(result.labels)
        ranked = random if order == "random" else result.review.tolist()  # anew each time
        seen += [i for i in ranked if i not in known][:10]
    return seen[:40], steps


there = set(truth.tolist())
present = [found.name for found in start.classes if found.number in there]
runs = {"random": correct("random"), "review order": correct("review")}
runs["classes taken out, then review order"] = correct("review", present)

# %%
# Review order takes doubtful images away, so the images that are left look easier. To compare
# fairly, accuracy is counted on the same images everywhere: those that nobody looked at in
# any of the three ways.

looked_at = {i for seen, _ in runs.values() for i in seen}
same = [i for i in range(len(features)) if i not in looked_at]
figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
colours = ("#8a8f98", "#2b6cb0", "#1a7f4b")
for (name, (_, steps)), colour in zip(runs.items(), colours, strict=True):
    shares = [100 * float((labels[same] == truth[same]).float().mean()) for labels in steps]
    axes.plot(range(0, 41, 10), shares, "o-", color=colour, label=name)
    print(f"{name:37}", "  ".join(f"{share:.1f}" for share in shares))
axes.set(xlabel="images looked at", ylabel="accuracy, %", xticks=range(0, 41, 10))
axes.set_title(f"The same {len(same)} images, which nobody looked at (simulated)")
axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 0.9))
axes.spines[["top", "right"]].set_visible(False)
plt.show()
temporary.cleanup()
# sphinx_gallery_thumbnail_number = 2

# %%
# What to remember
# ----------------
# First say which classes are not there: here that is worth more than forty labels, and leaves
# little for them to correct among the other images. Without it, look at images in review
# order: the labels you give are kept, and some others follow. On real images it differs from
# set to set: :doc:`/corrections` has the measurements.
#
# - The same by clicking, with undo and export: :doc:`/page`
# - The same with a spreadsheet: write ``labels.csv``, fill in ``true_label``, then ``kedge
#   adapt … --known labels.csv``: :doc:`/guide/check`
# - An image that shows none of the classes: :doc:`/gallery/unknown_images`
