"""Where images, labels and class names come from.

    folder("birds")                          class sub-folders: their names are the classes, and the labels
    folder("photos", classes=["cat", "dog"]) images without labels
    folder("labels.csv")                     a table path,label; paths are relative to the table
    benchmark("dtd", "/data")                one of the paper's eleven datasets, laid out as for CoOp
    huggingface("mnist", split="test")       a Hugging Face dataset (extra `datasets`)

Each gives an `ImageSet`. Nothing is opened here but lists: images are read one by one, by whoever needs them.
"""

from __future__ import annotations

from ._imageset import ImageSet
from .benchmarks import benchmark
from .folders import folder
from .hub import huggingface
from .known import find, names

__all__ = ["ImageSet", "benchmark", "find", "folder", "huggingface", "names"]
