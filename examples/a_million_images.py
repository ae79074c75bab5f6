"""
A million images
================

You have very many images, and they are to be labelled together. How long does it take, does
it fit into memory, and how do you find out before you start?
"""

# %%
# Features in a file
# ------------------
# Encoding is the long part: it is done once, and continued if it was interrupted. The
# features are kept in a file that is mapped into memory: only the rows in use are read. Here
# 30,000 images are simulated by ``kedge.simulate``, so that the page is made in seconds.

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import kedge

temporary = tempfile.TemporaryDirectory()
file = Path(temporary.name) / "features.safetensors"
# your own images instead: kedge.extract("photos", "names.txt", out=file)
kedge.simulate(n=30_000, k=50, d=128, seed=0).save(file)
print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB")

# %%
# Try it on a part
# ----------------
# ``take(slice(n))`` is the first n images of the file; a slice copies nothing. The script
# below labels larger and larger parts. It runs in a process of its own, so that memory counts
# from nothing: the most that the process held (on Linux), less what it held before the first
# part.

script = """
import json, pathlib, sys, time
import kedge

def most_memory():  # in MB
    status = pathlib.Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else ["VmHWM: nan"]
    peak = next(line for line in lines if line.startswith("VmHWM"))
    return float(peak.split()[1]) / 1e3

features = kedge.FeatureSet.load(sys.argv[1])
kedge.adapt(features.take(slice(64)))  # the first call loads the compiled solver
before = most_memory()
for n in (len(features) * share // 30 for share in (1, 3, 10, 30)):
    start = time.perf_counter()
    result = kedge.adapt(features.take(slice(n)))
    seconds = time.perf_counter() - start
    print(json.dumps({"n": n, "seconds": seconds, "megabytes": most_memory() - before}))
"""
printed = subprocess.check_output([sys.executable, "-c", script, file], text=True)
parts = [json.loads(line) for line in printed.splitlines()]
for part in parts:
    n, seconds, megabytes = part.values()
    each = f"{1e6 * seconds / n:.0f} µs and {1e3 * megabytes / n:.1f} kB for each image"
    print(f"{n:7,} images: {seconds:5.2f} s, {megabytes:4.0f} MB: {each}")

# %%
# How it grows
# ------------
# Memory grows with n. Time grows with n for the solve and with n² for the exact search of
# neighbours, which wins in the end. Above 100,000 images kedge therefore searches
# approximately, and ``result.info["recall"]`` says how many of the true neighbours it found.

n, seconds, megabytes = np.array([list(part.values()) for part in parts]).T
in_proportion = {"linestyle": ":", "color": "#8a8f98", "label": "in proportion to n"}
figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.4), layout="constrained")
left.loglog(n, seconds, "o-", color="#2b6cb0", label="measured")
left.loglog(n, seconds[0] * n / n[0], **in_proportion)
left.set(xlabel="images", ylabel="seconds")
left.legend(frameon=False)
right.loglog(n, megabytes, "o-", color="#1a7f4b", label="measured")
right.loglog(n, megabytes[-1] * n / n[-1], **in_proportion)
right.set(xlabel="images", ylabel="MB of memory")
right.legend(frameon=False)
for axes in (left, right):
    axes.set_xticks(n, [f"{size:,.0f}" for size in n])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
figure.suptitle("kedge.adapt, 50 classes, 128 dimensions (simulated features)", fontsize=11)
plt.show()
temporary.cleanup()

# %%
# Measured for a million
# ----------------------
# On two cores kedge labelled a million images with 100 classes and 512 dimensions, also
# simulated, in 220 s with 7.4 GB, and StatA in 200 s with 6.6 GB; 99 % of the true
# neighbours were found. 50,000 images with 1,000 classes took both some 42 s. kedge holds
# about eight tables of images × classes:

print(f"eight tables of a million × 100 numbers: {8 * 1_000_000 * 100 * 4 / 1e9:.1f} GB")

# %%
# If that does not fit, choose ``method="stata"``: where images × classes are too many, it
# keeps a list of candidates for each image. Or label in batches of, say, 50,000 with a
# ``Stream`` (:doc:`/gallery/a_stream`).
#
# What to remember
# ----------------
# Extract once, to a file. Try a part, look at seconds and memory, then take all. On your own
# file:
#
# .. code-block:: bash
#
#    kedge extract photos --classes names.txt -o features.safetensors  # continues after a kill
#    kedge adapt features.safetensors --method stata --out labels.parquet
#
# - All measurements, and how to repeat them on your machine: :doc:`/guide/speed`
# - Feature files: :doc:`/guide/features`
