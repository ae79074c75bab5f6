"""Figures of StatA's settings: the anchor weight α, hard and soft β."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from .drawing import GREY, INK, MUTED, PALETTE, Looks, Panel, Picture, Rows, canvas, label_lines, shortened, source
from .score import Score
from .scores import ZERO_SHOT, Cell, Group, dataset_order, scenario_order, sweep
from .words import points

STATA, ALPHA, BETA = "stata", 1.0, "hard"  # its defaults: a record lists only settings that differ


def alpha(group: Group) -> Picture | None:
    """As Fig. 3 of the paper: accuracy by number of classes in the batch, one line per anchor weight α."""
    curves: dict[tuple[str, int], dict[float, dict[int, Score]]] = defaultdict(lambda: defaultdict(dict))
    for cell in group.cells:
        batch, settings = sweep(cell.scenario), dict(cell.records[0].settings)
        if batch and cell.records[0].method == STATA and settings.keys() <= {"alpha"} and not cell.feedback:
            weight = float(settings.get("alpha", ALPHA))
            curves[cell.dataset, batch.size][weight][batch.k_min] = cell.score
    panels, rows = [], []
    means: dict[float, list[float]] = defaultdict(list)
    for (dataset, size), lines in sorted(curves.items(), key=lambda item: (dataset_order(item[0][0]), item[0][1])):
        classes = sorted(set.union(*(set(line) for line in lines.values())))
        if len(classes) < 2:
            continue
        figure, axes = canvas(3.1, shortened(dataset, 44), source(group, f"batches of {size:,}"))
        zero_shot = {k: fmean(line[k].zero_shot for line in lines.values() if k in line) for k in classes}
        axes.plot(classes, [100 * zero_shot[k] for k in classes], color=GREY, ls="--")
        ends = [(100 * zero_shot[classes[-1]], ZERO_SHOT, MUTED)]
        colours = _alpha_colours(sorted(lines))
        for weight, line in sorted(lines.items()):
            xs = sorted(line)
            ys = [100 * line[k].accuracy for k in xs]
            usual = weight == ALPHA
            axes.plot(xs, ys, color=colours[weight], lw=3 if usual else 1.5, marker="o", ms=3.5)
            ends.append((ys[-1], f"α = {_weight(weight)}", colours[weight]))
            if len(xs) == len(classes):
                means[weight].append(fmean(ys))
            rows += [
                {"dataset": dataset, "batch_size": size, "alpha": weight, "k_eff": k}
                | {"accuracy": line[k].accuracy, "zero_shot": zero_shot[k]}
                for k in xs
            ]
        axes.set_xticks(_some(classes))
        axes.set_xlabel("classes in the batch, K_eff")
        axes.set_ylabel("accuracy, %")
        axes.grid(axis="y")
        label_lines(axes, ends, 0.07)
        said = f"{dataset}, batches of {size}: accuracy for {classes[0]} to {classes[-1]} classes and {len(lines)} α"
        panels.append(Panel(f"alpha-{dataset}-{size}", said, figure))
    if not panels:
        return None
    title = "How does accuracy depend on the number of classes in the batch?"
    whole = {weight: fmean(found) for weight, found in means.items() if len(found) == len(panels)}
    if len(whole) > 1:
        winner = max(whole, key=lambda weight: whole[weight])
        title = f"α = {_weight(winner)} is the best anchor weight on average ({whole[winner]:.1f} %)"
    return Picture(
        "alpha",
        title,
        "Accuracy of StatA by the number of classes in the batch, one line per anchor weight α. The wide line is the "
        f"default, α = {_weight(ALPHA)}; the dashed line is zero-shot on the same images.",
        panels,
        rows,
    )


def _alpha_colours(weights: Sequence[float]) -> dict[float, str]:
    """Black for the default, warm colours below it, cold colours above."""
    below, above = [w for w in weights if w < ALPHA], [w for w in weights if w > ALPHA]
    warm, cold = (1, 4, 3), (6, 0, 2)
    return (
        {ALPHA: INK}
        | {w: PALETTE[warm[at % 3]][0] for at, w in enumerate(below)}
        | {w: PALETTE[cold[at % 3]][0] for at, w in enumerate(above)}
    )


def beta(group: Group, looks: Looks) -> Picture | None:
    """Hard and soft β of StatA: one row per scenario, over the datasets that have both."""
    found: dict[tuple[str, str], dict[str, dict[str, Cell]]] = defaultdict(lambda: defaultdict(dict))
    for cell in group.cells:
        settings = dict(cell.records[0].settings)
        kind = settings.pop("beta", BETA)
        if cell.records[0].method == STATA and not cell.feedback:
            variant = " ".join(f"{name}={value}" for name, value in settings.items())
            found[cell.scenario, variant][cell.dataset][kind] = cell
    pairs = {}  # (scenario, other settings) → hard, soft, datasets
    for key, datasets in found.items():
        both = [kinds for kinds in datasets.values() if len(kinds) == 2]
        if both:
            pairs[key] = [Score.mean([kinds[kind].score for kinds in both]) for kind in ("hard", "soft")], len(both)
    if not pairs:
        return None
    order = sorted(pairs, key=lambda key: (scenario_order(key[0]), key[1]))
    figure, axes = canvas(1.6 + 0.3 * len(order), "hard and soft β", source(group, "mean over datasets"))
    rows: Rows = []
    colour = looks(next(c.label for c in group.cells if c.records[0].method == STATA)).colour
    for at, key in enumerate(order):
        (hard, soft), number = pairs[key]
        axes.plot([100 * hard.accuracy, 100 * soft.accuracy], [at, at], color=GREY, lw=1.2, zorder=1)
        axes.plot(100 * hard.accuracy, at, "o", color=colour, ms=6, label="hard" if at == 0 else None)
        axes.plot(
            100 * soft.accuracy, at, "o", mfc="none", mew=1.6, color=colour, ms=8, label="soft" if at == 0 else None
        )
        axes.text(
            1.02,
            at,
            points(hard.accuracy - soft.accuracy),
            va="center",
            fontsize=8.5,
            transform=axes.get_yaxis_transform(),
        )
        rows.append(
            {"scenario": key[0], "settings": key[1], "hard": hard.accuracy, "soft": soft.accuracy, "datasets": number}
        )
    axes.set_yticks(range(len(order)), [shortened(_short_scenario(*key), 30) for key in order])
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.margins(x=0.12)
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("accuracy, %   (right: hard − soft, points)")
    figure.legend(loc="outside lower left", ncols=2, fontsize=8.5)
    gap = fmean(hard.accuracy - soft.accuracy for (hard, soft), _ in pairs.values())
    wins = sum(hard.accuracy > soft.accuracy for (hard, soft), _ in pairs.values())
    return Picture(
        "beta",
        f"Hard β is better than soft β in {wins} of {len(pairs)} scenarios ({points(gap)} points on average)",
        "StatA's β_k computed from the number of images labelled k (hard) or from the sum of the probabilities of k "
        "(soft). Means over the datasets that have both.",
        [Panel("beta", f"hard minus soft: {points(gap)} points on average over {len(pairs)} scenarios", figure)],
        rows,
    )


def _weight(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:g}"


def _some(values: Sequence[int]) -> Sequence[int]:
    """At most eight ticks, which do not touch."""
    return values if len(values) <= 8 else [*values[:: math.ceil(len(values) / 7)]]


def _short_scenario(scenario: str, variant: str) -> str:
    batch = sweep(scenario)
    name = f"{batch.k_min} classes, batch {batch.size:,}" if batch else scenario
    return f"{name}, {variant}" if variant else name
