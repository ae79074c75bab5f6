"""
kedge as an estimator of scikit-learn
=====================================

You work with scikit-learn: ``fit``, ``predict_proba``, cross-validation, its metrics. A dozen lines make an estimator
of ``kedge.adapt``. It takes features of images, and the labels given to ``fit`` are labels that a person knows.

The pictures come with kedge and are simulated: the figures show how to compare, and are no benchmark.
"""

# %%
# The estimator
# -------------
# kedge labels images together. So ``predict_proba`` solves the images of ``fit`` and the new ones as one set, in which
# the labels of the first are known, and returns the rows of the new ones. So the labels of new images depend on which
# other images come with them: pass all of them at once.

import tempfile

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import StratifiedShuffleSplit, cross_validate

import kedge


class KedgeClassifier(ClassifierMixin, BaseEstimator):
    """Labels images: features n×d, features of the class names k×d, and some known labels."""

    def __init__(self, text_features, logit_scale=100.0, method="kedge"):
        self.text_features = text_features
        self.logit_scale = logit_scale
        self.method = method

    def fit(self, X, y):
        """Keep the images whose labels are known; y has class numbers, from 0."""
        self.X_, self.y_ = np.asarray(X), np.asarray(y)
        self.classes_ = np.arange(len(self.text_features))
        return self

    def predict_proba(self, X):
        """Probabilities, n×k."""
        known = np.concatenate([self.y_, np.full(len(X), -1)])  # −1: not known
        together = np.concatenate([self.X_, X])
        result = kedge.adapt(
            together,
            self.text_features,
            known=known,
            logit_scale=self.logit_scale,
            method=self.method,
        )
        return result.probs[len(self.X_) :]

    def predict(self, X):
        """Class numbers, n."""
        return self.predict_proba(X).argmax(axis=1)


# %%
# Features and labels
# -------------------
# Each sub-folder is a class. For your own images, name your own folder, and leave ``encoder`` out: then it is CLIP.

with tempfile.TemporaryDirectory() as folder:
    kedge.pictures(f"{folder}/photos")
    features = kedge.extract(
        f"{folder}/photos", encoder="tiny", out=f"{folder}/photos.safetensors"
    )
    X, y = features.image_features.numpy().copy(), features.labels.numpy().copy()

head = features.head
print(f"{X.shape[0]} images, {X.shape[1]} features, {head.k} classes")

# %%
# Cross-validation with few labels
# --------------------------------
# One, two, four or eight labels of each class are known; the accuracy is that of all other images. Logistic regression
# learns from the labels alone. Zero-shot knows only the names of the classes.

estimators = {
    "kedge": KedgeClassifier(head.features.numpy(), logit_scale=head.logit_scale),
    "logistic regression": LogisticRegression(max_iter=1000, C=100.0),
}
labelled = np.array([1, 2, 4, 8])
accuracy = {name: [] for name in estimators}
for per_class in labelled:
    splits = StratifiedShuffleSplit(3, train_size=per_class * head.k, random_state=0)
    for name, estimator in estimators.items():
        scores = cross_validate(
            estimator, X, y, cv=splits, scoring=("accuracy", "neg_log_loss")
        )
        accuracy[name].append(scores["test_accuracy"].mean())
        print(
            f"{per_class} per class, {name:19}: accuracy {scores['test_accuracy'].mean():.3f}, "
            f"log loss {-scores['test_neg_log_loss'].mean():.3f}"
        )

zero_shot = kedge.adapt(X, head.features.numpy(), logit_scale=head.logit_scale).zero_shot
print(
    f"no labels, zero-shot: accuracy {accuracy_score(y, zero_shot.argmax(axis=1)):.3f}, "
    f"log loss {log_loss(y, zero_shot):.3f}"
)

# %%
figure, axis = plt.subplots(figsize=(6.4, 3.8))
for name, values in accuracy.items():
    axis.plot(labelled, 100 * np.array(values), marker="o", label=name)
axis.axhline(
    100 * accuracy_score(y, zero_shot.argmax(axis=1)),
    color="grey",
    linestyle="--",
    label="zero-shot",
)
axis.set_xscale("log", base=2)
axis.set_xticks(labelled, labels=labelled)
axis.set_xlabel("labels per class")
axis.set_ylabel("accuracy of the others, %")
axis.spines[["top", "right"]].set_visible(False)
axis.legend(frameon=False)
figure.tight_layout()
plt.show()

# %%
# The names of the classes help where labels are few; with more labels for each class, a classifier that learns from
# labels alone catches up with kedge, and passes it here. A table for other tools is
# ``kedge.Predictions(…).to_pandas()``: see :doc:`/tools`. What corrections are worth on real features:
# :doc:`/corrections`.
