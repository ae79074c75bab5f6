"""
Label a folder of images
========================

You have a folder of images and you know which classes can be in it. You want a label for
each image, a table of them, and an idea of which labels to trust. No image is labelled yet,
and nothing is trained.
"""

# %%
# The images
# ----------
# kedge comes with pictures to try it on. They are simulated: drawings of everyday things,
# photographed by a program. Here are 400 of them, of 20 classes, each class in a folder of
# its own.
#
# To run this page on your own images, change the line that is marked and leave ``encoder``
# out. They must be in folders named by their class, because the page counts which labels are
# right; kedge itself does not need that.

import csv
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import kedge

temporary = tempfile.TemporaryDirectory()
# your own images instead: photos, classes = Path("my/photos"), ["cat", "dog", "bird"]
photos = kedge.pictures(Path(temporary.name) / "photos")
classes = sorted(folder.name for folder in photos.iterdir())
print(f"{len(classes)} classes: {', '.join(classes[:6])} …")

# %%
# The labels
# ----------
# One call encodes all images and labels them together. ``tiny`` is a small model that comes
# with kedge and knows only these drawings. For photographs leave ``encoder`` out: the default
# is CLIP ViT-B/16.

found = kedge.classify(photos, classes, encoder="tiny")
print(found)

# %%
# *Zero-shot* is what the model says of each image alone; *adapted* is what kedge says of all
# of them together. kedge can print accuracies here because these pictures lie in folders with
# their true class. No method sees that. Your own images need no such folders; then the
# verdict says what to expect.

print(found.result.verdict.sentence)

# %%
# What changed
# ------------
# Most labels stay as they were. Here are some that changed, drawn at random: zero-shot's
# label → kedge's label, green if that is the true one and red if not.

truth = [Path(path).parent.name for path in found.paths]
rows = list(found.rows())
changed = [i for i, row in enumerate(rows) if row["changed"]]
figure, places = plt.subplots(2, 6, figsize=(9, 4.4), layout="constrained")
some = np.random.default_rng(0).permutation(changed)
for place, i in zip(places.flat, some, strict=False):
    place.imshow(plt.imread(photos / found.paths[i]))
    place.set_axis_off()
    before, after = rows[i]["zero_shot_label"], rows[i]["label"]
    colour = "#1a7f4b" if after == truth[i] else "#b3261e"
    place.set_title(f"{before} →\n{after}", y=-0.36, fontsize=11, color=colour)
plt.show()

before = sum(rows[i]["zero_shot_label"] == truth[i] for i in changed)
after = sum(rows[i]["label"] == truth[i] for i in changed)
print(f"{len(changed)} labels changed: {before} right before, {after} right now")

# %%
# Which labels to trust
# ---------------------
# Each label has a probability. If you accept only labels above some probability, fewer images
# get one, and more of these are right.

probability = np.array([row["probability"] for row in rows])
correct = np.array([row["label"] == name for row, name in zip(rows, truth, strict=True)])
limits = np.linspace(0, 0.95, 20)
accepted = [np.mean(probability > limit) for limit in limits]
accuracy = [np.mean(correct[probability > limit]) for limit in limits]

figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
axes.plot(limits, accuracy, color="#1a7f4b", label="of those accepted, right")
axes.plot(limits, accepted, color="#8a8f98", label="of all images, accepted")
axes.set(xlabel="accept labels with a probability above", ylabel="share of images")
axes.set(xlim=(0, 0.95), ylim=(0, 1.03))
axes.legend(frameon=False, loc="lower left")
axes.spines[["top", "right"]].set_visible(False)
plt.show()

sure = probability > 0.8
right = np.mean(correct[sure])
print(f"above 0.8: {np.mean(sure):.0%} of the images, {right:.1%} of them right")

# %%
# The table
# ---------
# ``write`` makes a table with one row per image (.csv, .json or .parquet). The column
# ``review_rank`` says which images are most worth a look, and ``true_label`` is empty, for
# you to fill in.

table = Path(temporary.name) / "labels.csv"
found.write(table)
first = next(csv.DictReader(table.open(encoding="utf-8")))
print(*(f"{name:22} {value}" for name, value in first.items()), sep="\n")
temporary.cleanup()

# %%
# The same on the command line, with a copy of the images sorted into folders:
#
# .. code-block:: bash
#
#    kedge adapt photos --classes "cat, dog, bird" --out labels.csv --sort-into sorted
#
# What to remember
# ----------------
# Images that are labelled together help each other. Look at the verdict first, then accept
# the labels that are probable enough for your purpose, and check the others. The pictures
# here are simulated, and easier to adapt to than photographs.
#
# - More ways to pass images, other encoders, feature files: :doc:`/guide/images`
# - The list of classes is much longer than what is in the images:
#   :doc:`/gallery/few_classes_of_many`
# - Correct labels by hand, in the browser (:doc:`/page`) or in Python
#   (:doc:`/gallery/correct_and_continue`)
# - What probability and verdict mean, and where they fail: :doc:`/honest`
