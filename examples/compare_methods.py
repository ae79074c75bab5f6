"""
Compare methods
===============

You want to know which method suits your images, or you have read a paper and want its method beside others. A
fair comparison gives every method the same images in the same order, shows zero-shot beside it, and tries more
than one situation.
"""

# %%
# Features with labels
# --------------------
# A comparison needs labelled images. These features are simulated, from ``kedge.simulate``: 1,500 images of 50
# classes. So the numbers below show how to compare, not which method is best.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import kedge

temporary = tempfile.TemporaryDirectory()
here = Path(temporary.name)
kedge.simulate(n=1500, k=50, seed=0).save(here / "features.safetensors")  # your own: kedge.extract(…, out=…)

# %%
# One method, one situation
# -------------------------
# ``evaluate`` draws batches by a scenario, labels them and counts. ``very-low`` is batches of 64 images with 1 to
# 4 classes. The interval is a paired bootstrap over the batches.

features = kedge.FeatureSet.load(here / "features.safetensors")
record = kedge.evaluate("kedge", features, "very-low", seed=0, tasks=30)
print(f"zero-shot {record.zero_shot:.1%}, kedge {record.accuracy:.1%}")
low, gain, high = (100 * share for share in (record.gain_low, record.gain, record.gain_high))
print(f"gain {gain:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}")
print(f"{record.harmed:.0%} of the batches became worse")

# %%
# Many methods, several situations
# --------------------------------
# A ``Grid`` is methods × feature files × scenarios × seeds. ``run`` writes one file per cell; stopped and started
# again, it goes on where it was. Streams take longer, so they get fewer tasks.

methods = ["kedge", "stata", "moon", "transclip", "tda"]
batches = ["very-low", "medium", "all"]
streams = ["stream-high"]
files = [here / "features.safetensors"]
grids = [
    kedge.Grid.of(files, methods, batches, tasks=15),
    kedge.Grid.of(files, methods, streams, tasks=2),
]
outcome = kedge.run(grids, here / "results")
records = {(record.label, record.scenario): record for record in outcome.records()}
print(f"{outcome.ran} cells, {len(outcome.failed)} failed")

scenarios = batches + streams
print(f"\n{'gain in points':15}", *(f"{scenario:>12}" for scenario in scenarios))
for method in methods:
    print(f"{method:15}", *(f"{100 * records[method, scenario].gain:+12.1f}" for scenario in scenarios))

# %%
# The picture
# -----------
# Points are the gain over zero-shot on the same images, lines its 95 % interval over the tasks. The whole set is
# one task, so it has no interval.

colours = dict(zip(methods, ("#2b6cb0", "#d08a2e", "#1a7f4b", "#b3261e", "#7b5aa6"), strict=True))
figure, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
for j, method in enumerate(methods):
    for i, scenario in enumerate(scenarios):
        record = records[method, scenario]
        x, name = i + (j - 2) * 0.12, method if i == 0 else None
        if record.tasks > 1:
            axes.plot([x, x], [100 * record.gain_low, 100 * record.gain_high], color=colours[method], linewidth=1.5)
        axes.plot(x, 100 * record.gain, "o", markersize=6, color=colours[method], label=name)
axes.axhline(0, color="#8a8f98", linewidth=0.8)
axes.set(ylabel="gain over zero-shot, points", title="Simulated features: how to compare, not which is best")
axes.set_xticks(range(len(scenarios)), scenarios)
axes.legend(frameon=False, ncols=len(methods), loc="lower center", bbox_to_anchor=(0.5, -0.28))
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# A page to share
# ---------------
# ``write_report`` makes one HTML page with tables, figures, settings and hashes. It works offline.

report = kedge.write_report(outcome.records(), here / "report.html")
print(f"{report.name}: {report.stat().st_size / 1e3:.0f} kB")
temporary.cleanup()

# %%
# What to remember
# ----------------
# Ask in the situation that you have. A method may gain much where all classes are present and lose much where few
# are, and the other way round. Look at the share of batches made worse, not only at the mean. The same on the
# command line:
#
# .. code-block:: bash
#
#    kedge bench features.safetensors --method all --scenario very-low --scenario all --tasks 100 --out results
#    kedge table results
#    kedge report results -o report.html
#
# - Scenarios, presets and tables: :doc:`/guide/compare`
# - What the comparison says on real features: :doc:`/which_method`
# - The tables of the paper, in one command: :doc:`/reproduce`
# - A method of your own in the same table: :doc:`/gallery/write_a_method`
