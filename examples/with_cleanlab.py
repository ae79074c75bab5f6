"""
Find wrong labels with cleanlab
===============================

You have labels already, from a crowd or from file names, and some of them are wrong. cleanlab finds suspicious ones if
it gets probabilities of a model that has not seen the labels. kedge gives such probabilities without any training.

The pictures come with kedge and are simulated. Some of their labels are made wrong on purpose, so that we can count how
many are found.
"""

# %%
# Pictures, with some wrong labels
# --------------------------------
# Each sub-folder is a class. For your own images, name your own folder, and leave ``encoder`` out: then it is CLIP.

import tempfile

import matplotlib.pyplot as plt
import numpy as np
from cleanlab.filter import find_label_issues
from PIL import Image

import kedge

temporary = tempfile.TemporaryDirectory()
folder = kedge.pictures(f"{temporary.name}/photos")
features = kedge.extract(folder, encoder="tiny", out=f"{temporary.name}/photos.safetensors")

names, true = features.head.class_names, features.labels.numpy()


def with_mistakes(seed):
    """The true labels, a tenth of them replaced by another class; and which ones."""
    random = np.random.default_rng(seed)
    wrong = random.random(len(true)) < 0.1
    other = (true + random.integers(1, len(names), len(true))) % len(names)
    return np.where(wrong, other, true), wrong


given, wrong = with_mistakes(seed=0)
print(
    f"{len(given)} pictures of {len(names)} classes; {wrong.sum()} of their labels are made wrong"
)

# %%
# Probabilities from kedge
# ------------------------
# kedge does not see the given labels: they are not passed as ``known``. So the probabilities are fair judges of them.

found = kedge.Predictions(features, kedge.adapt(features))
pred_probs = found.result.probs.numpy()

# %%
# Suspicious labels
# -----------------
# cleanlab lists the labels that it finds suspicious, the worst first.

issues = find_label_issues(
    given, pred_probs, return_indices_ranked_by="self_confidence", n_jobs=1
)
hits = wrong[issues].sum()
print(
    f"{len(issues)} labels are suspicious; {hits} of these are wrong, of {wrong.sum()} in all"
)

# %%
# That was one draw of mistakes. The means of twenty draws, with zero-shot probabilities beside those of kedge:

for source, probabilities in (
    ("zero-shot", found.result.zero_shot.numpy()),
    ("kedge", pred_probs),
):
    counts = []
    for seed in range(20):
        labels, mistakes = with_mistakes(seed)
        suspects = find_label_issues(
            labels, probabilities, return_indices_ranked_by="self_confidence", n_jobs=1
        )
        counts.append((len(suspects), mistakes[suspects].sum(), mistakes.sum()))
    suspicious, right, made = np.mean(counts, axis=0)
    false = suspicious - right
    print(
        f"{source:9}: {right:.1f} of {made:.1f} mistakes found, and {false:.1f} false alarms"
    )

# %%
# The most suspicious ones
# ------------------------
# Above each picture is its given label, in red if it was made wrong. Below it is what kedge says.

figure, axes = plt.subplots(2, 6, figsize=(11, 4.6))
for axis, image in zip(axes.flat, issues, strict=False):
    axis.imshow(Image.open(folder / found.paths[image]))
    axis.set_title(
        names[given[image]], fontsize=10, color="firebrick" if wrong[image] else "black"
    )
    axis.set_xlabel(found.names[image], fontsize=10)
    axis.set_xticks([])
    axis.set_yticks([])
figure.tight_layout()
plt.show()

# %%
# People should look at the suspicious pictures: ``found.write("photos.labelstudio.json")`` hands the set to Label
# Studio, and what they say there comes back as known labels. See :doc:`/tools`.

temporary.cleanup()
