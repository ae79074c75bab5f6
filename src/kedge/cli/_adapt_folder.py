"""`kedge adapt FOLDER --label-folder DIR`: label a feature folder that need not fit in memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from .._version import __version__
from ..errors import FileError, SettingError
from ..words import count, percent
from ._adapt_summary import show_approximations
from ._show import print_json, tell


def adapt_folder(
    source: Sequence[str],
    label_folder: Path,
    method: str,
    set_: Sequence[str],
    known: Path | None,
    table: Path | None,
    *,
    present: str | None,
    absent: str | None,
    cluster: str | None,
    actors: int | None,
    raw_csv: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Label the images of a feature folder, here or on a cluster; the labels go to `label_folder`, and to a table."""
    from .. import progress
    from ..features.folder import FeatureFolder
    from ..images.image_set import is_feature_folder
    from ..labelling.adapt_folder import adapt_folder as adapt
    from ..labelling.class_file import read_present
    from ..labelling.known_file import read_known
    from ..labelling.label_folder import check_table
    from ..labelling.label_work import check_new_labels
    from ..methods.registry import build, find_method, parse_method
    from ..methods.settings import parse

    if len(source) != 1:
        raise SettingError(f"--label-folder is for one feature folder; got {len(source)} names. Name one.")
    if not os.path.exists(source[0]):
        raise FileError(f"no folder {source[0]}. Check the path (the current folder is {Path.cwd()}).")
    if not is_feature_folder(source[0]):
        raise SettingError(f"--label-folder is for a feature folder; {source[0]} is none. Make one: kedge features")
    if actors is not None and cluster is None:
        raise SettingError("--actors is for --cluster. Leave --actors out.")
    check_new_labels(label_folder)
    if table:
        check_table(table)
    name = parse_method(method)["name"]
    chosen = build(method, parse(find_method(name), list(set_), name))
    start = time.perf_counter()
    with contextlib.nullcontext() if quiet else progress.on_stderr():
        folder = FeatureFolder.open(source[0])
        can_occur = read_present(present, absent, folder.head)
        said: dict[str, Any] = {"present": can_occur}
        if known:
            images = range(len(folder)) if not folder.columns.paths else list(_paths(folder))
            said["known"] = read_known(known, images, folder.head, present=can_occur)
        if cluster is None:
            labels = adapt(folder, label_folder, chosen, **said)
        else:
            from ..cluster.solve import adapt_folder as on_cluster

            labels = on_cluster(folder, label_folder, chosen, **said, address=cluster, actors=actors)
        if table:
            labels.write(table, raw_csv)
    seconds = time.perf_counter() - start
    summary = {**labels.summary, "seconds": seconds}
    if as_json:
        print_json({**summary, "source": list(source), "sha256": folder.hash, "kedge": __version__})
    if not quiet:
        images, changed = summary["images"], summary["changed"]
        tell(
            f"{count(images, 'image')}, {count(summary['classes'], 'class')}, method {summary['method']}: "
            f"{count(changed, 'label')} changed ({percent(changed / images)}), in {seconds:.0f} s"
        )
        if summary["accuracy"] is not None:
            tell(
                f"accuracy: {percent(summary['zero_shot_accuracy'])} zero-shot, {percent(summary['accuracy'])} adapted"
            )
        show_approximations(summary)
        for made in filter(None, (label_folder, table)):
            tell(f"→ {made}")


def _paths(folder: Any) -> Any:
    """The paths of all images."""
    return chain.from_iterable(shard.open().paths or () for shard in folder.shards)
