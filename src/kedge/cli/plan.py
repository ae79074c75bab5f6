"""`kedge plan`: show the batches of a scenario without running a method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ._app import FeatureFile, Json, app
from ._show import print_facts, print_json, tell


@app.command()
def plan(
    features: FeatureFile,
    scenario: Annotated[str, typer.Option(metavar="NAME", help="See `kedge ls scenarios`.")],
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same plan on every machine.")] = 0,
    tasks: Annotated[int | None, typer.Option(metavar="N", help="Number of tasks; default: the scenario's.")] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the plan as .safetensors.")] = None,
    draw: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the classes of the batches as .png.")] = None,
    as_json: Json = False,
) -> None:
    """Show the batches a scenario makes of a feature file.

    \b
    Example: kedge plan birds.safetensors --scenario stream-high --draw stream.png
    """
    from ..benchmark.cells import FeatureFile
    from ..benchmark.plan import draw as draw_tasks
    from ..benchmark.plan_view import draw_plan, plan_facts
    from ..features.feature_set import FeatureSet
    from ..files import check_writable

    for path in filter(None, (save, draw)):
        check_writable(path)
    loaded = FeatureSet.load(features)
    file = FeatureFile.of(features, loaded)
    assert loaded.labels is not None
    labels = loaded.labels.numpy()
    drawn = draw_tasks(scenario, labels, seed, tasks)
    facts = {"features": str(features), **plan_facts(drawn, labels)}
    if save:
        drawn.save(save)
    if draw:
        draw_plan(drawn, labels, draw, file.dataset)
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)
    for path in filter(None, (save, draw)):
        tell(f"→ {path}")
