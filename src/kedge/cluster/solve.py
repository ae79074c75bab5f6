"""One joint solve on a cluster: `kedge.adapt_folder`, its parts in actors.

    from kedge.cluster.solve import adapt_folder
    labels = adapt_folder("birds", "birds-labels", address="10.0.0.1:6379")

All nodes see the folders of the features and of the labels under the same paths.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from ..features.folder import FeatureFolder
from ..labelling import adapt_folder as here
from ..labelling.label_folder import LabelFolder
from ..labelling.label_work import check_new_labels, parts_begun
from ..methods.contract import Method
from ..methods.given import Known, Present
from ..ranges import whole
from .actors import Hosts, nodes
from .connect import AUTO, connected


def adapt_folder(
    features: str | Path | FeatureFolder,
    out: str | Path,
    method: str | Method = "kedge",
    *,
    known: Known | None = None,
    present: Present | None = None,
    address: str = AUTO,
    actors: int | None = None,
    **settings: Any,
) -> LabelFolder:
    """As `kedge.adapt_folder`, on the cluster at this address.

    actors: how many hold the images, each with as many cores as there are for it; by default one for each node, or as
    an interrupted run has arranged the images.
    """
    out = check_new_labels(Path(out).absolute())
    if actors is not None:
        whole("actors", actors, 1, 100_000)
    with connected(address):
        parts = actors or parts_begun(out) or max(1, len(nodes()))
        with closing(Hosts(parts)) as hosts:
            said: dict[str, Any] = {"known": known, "present": present}
            return here.adapt_folder(features, out, method, **said, parts=parts, engine=hosts, **settings)
