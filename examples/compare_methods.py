"""
Compare methods
===============

You want to know which method suits your images, or you have read a paper and want its
method beside others. A fair comparison gives every method the same images in the same
order, shows zero-shot beside it, and tries more than one situation.
"""

# %%
# Features with labels
# --------------------
# A comparison needs labelled images. These features are simulated, from ``kedge.simulate``:
# 1,500 images of 50 classes. So the numbers below show how to compare, not which method is
# best.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import kedge

temporary = tempfile.TemporaryDirectory()
here = Path(temporary.name)
file = here / "features.safetensors"
# your own images instead: kedge.extract("photos", "names.txt", out=file)
kedge.simulate(n=1500, k=50, seed=0).save(file)
features = kedge.FeatureSet.load(file)

# %%
# One method, one situation
# -------------------------
# ``evaluate`` draws batches by a scenario, labels them and counts. ``very-low`` is batches of
# 64 images with 1 to 4 classes. The interval is a paired bootstrap over the batches.

record = kedge.evaluate("kedge", features, "very-low", seed=0, tasks=30)
print(f"zero-shot {record.zero_shot:.1%}, kedge {record.accuracy:.1%}")
low, gain, high = (
    100 * share for share in (record.gain_low, record.gain, record.gain_high)
)
print(f"gain {gain:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}")
print(f"{record.harmed:.0%} of the batches became worse")

# %%
# Many methods, several situations
# --------------------------------
# A ``Grid`` is methods × feature files × scenarios × seeds. ``run`` writes one file per cell;
# stopped and started again, it goes on where it was. Streams take longer, so they get fewer
# tasks.

methods = ["kedge", "stata", "moon", "transclip", "tda"]
batches = ["very-low", "medium", "all"]
streams = ["stream-high"]
grids = [
    kedge.Grid.of([file], methods, batches, tasks=15),
    kedge.Grid.of([file], methods, streams, tasks=2),
]
outcome = kedge.run(grids, here / "results")
records = {(record.label, record.scenario): record for record in outcome.records()}
print(f"{outcome.ran} cells, {len(outcome.failed)} failed")

print(f"\n{'gain in points':15}", *(f"{scenario:>12}" for scenario in batches + streams))
for method in methods:
    gains = [100 * records[method, scenario].gain for scenario in batches + streams]
    print(f"{method:15}", *(f"{gain:+12.1f}" for gain in gains))

# %%
# The picture
# -----------
# Points are the gain over zero-shot on the same images, lines its 95 % interval over the
# tasks. The whole set is one task, so it has no interval.

figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
places = range(len(batches + streams))
colours = ("#2b6cb0", "#d08a2e", "#1a7f4b", "#b3261e", "#7b5aa6")
for j, (method, colour) in enumerate(zip(methods, colours, strict=True)):
    shown = [records[method, scenario] for scenario in batches + streams]
    gains = [100 * record.gain for record in shown]
    x = [place + 0.12 * (j - 2) for place in places]
    axes.plot(x, gains, "o", color=colour, label=method)
    low, high = zip(
        *((100 * record.gain_low, 100 * record.gain_high) for record in shown), strict=True
    )
    axes.vlines(x, low, high, color=colour)
axes.axhline(0, color="#8a8f98", linewidth=0.8)
axes.set(
    ylabel="gain over zero-shot, points",
    title="Simulated features: how to compare, not which is best",
)
axes.set_xticks(places, batches + streams)
figure.legend(frameon=False, ncols=len(methods), loc="outside lower center")
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# A page to share
# ---------------
# ``write_report`` makes one HTML page with tables, figures, settings and hashes. It works
# offline.

report = kedge.write_report(outcome.records(), here / "report.html")
print(f"{report.name}: {report.stat().st_size / 1e3:.0f} kB")
temporary.cleanup()

# %%
# What to remember
# ----------------
# Ask in the situation that you have. A method may gain much where all classes are present and
# lose much where few are, and the other way round. Look at the share of batches made worse,
# not only at the mean. The same on the command line:
#
# .. code-block:: bash
#
#    kedge bench features.safetensors --method all --scenario very-low --out results
#    kedge table results
#    kedge report results -o report.html
#
# - Scenarios, presets and tables: :doc:`/guide/compare`
# - What the comparison says on real features: :doc:`/which_method`
# - The tables of the paper, in one command: :doc:`/reproduce`
# - A method of your own in the same table: :doc:`/gallery/write_a_method`
