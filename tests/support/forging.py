"""Forged files: good files of every kind, changed at random as by hand or by damage.

    random = np.random.default_rng(7)
    path = forged("plan", random, folder)      # writes a forged plan below the folder
    use("plan", path)                          # loads it and works with it

Whatever is forged, `use` either succeeds or raises a KedgeError; anything else is a fault. The same seed gives the same
forgery. A forgery changes entries of the header or the JSON (other types, missing, huge, negative, NaN, deep) or arrays
(type, shape, values, missing, extra), with a correct content hash; or it changes bytes of the file.

| kind     | what `forged` writes and returns                                                 |
|----------|----------------------------------------------------------------------------------|
| features | a feature file                                                                   |
| npz      | an .npz file of arrays, some of which claim to be larger than any memory         |
| stream   | the saved stream of some method, after two batches                               |
| plan     | a plan                                                                           |
| record   | the record of a cell, of a stream or of single batches                           |
| grid     | a grid file (TOML)                                                               |
| export   | what Label Studio exported, as JSON or JSON-MIN                                  |
| folder   | a feature folder, with its manifest and its shards                               |
| labels   | a label folder, likewise                                                         |
| parts    | the folder of an unfinished extraction, `FILE.parts`, with its job and its shards |
| arranged | the label folder of an unfinished solve, whose images are arranged in parts      |
| embeddings | a folder of clip-retrieval, with arrays and tables of names                    |
| table    | a Parquet file of encoded images                                                 |
"""

from __future__ import annotations

from pathlib import Path

import forged_files
import forged_folders
from tampering import Random

FORGERS = forged_files.FORGERS | forged_folders.FORGERS
USES = forged_files.USES | forged_folders.USES
KINDS = tuple(FORGERS)


def forged(kind: str, random: Random, folder: Path) -> Path:
    """Write a forged file of this kind below the folder and return its path."""
    return FORGERS[kind](random, folder)


def use(kind: str, path: Path) -> None:
    """Load a file of this kind and do with it what kedge does; a result that cannot be right is an AssertionError."""
    USES[kind](path)
