# Every target makes the environment it needs; nothing but Python 3.10 or later and make is assumed.
#   make test EXTRAS=dev,docs,cluster,openvino    with the tests of Ray and OpenVINO (in an environment that is made anew)
#   make demo TORCH_INDEX=URL    take torch from this index, for example one with CPU builds (see docs/guide/install.md)
PYTHON ?= python3
VENV   := .venv
EXTRAS ?= dev,docs
BIN    := $(VENV)/bin
PIP    := -m pip install --quiet --disable-pip-version-check -c constraints-torch.txt
torch   = $(if $(TORCH_INDEX),$(1) $(PIP) --index-url $(TORCH_INDEX) torch)

.PHONY: demo serve test test-cluster test-transformers4 test-openclip test-tools docs lint bench load fuzz clean
.DEFAULT_GOAL := demo

$(VENV)/.ready: pyproject.toml constraints-torch.txt
	$(PYTHON) -m venv $(VENV)
	$(call torch,$(BIN)/python)
	$(BIN)/python $(PIP) -e '.[$(EXTRAS)]'
	touch $@

demo: $(VENV)/.ready  ## the main job on the bundled model and images
	$(BIN)/kedge demo --out build/demo

serve: $(VENV)/.ready  ## the page, on bundled pictures
	mkdir -p build
	$(BIN)/kedge serve --demo --work build/serve-demo

test: $(VENV)/.ready lint  ## style, types and every test
	$(BIN)/python -m pytest -n 2 --dist worksteal --ignore=tests/cluster
	$(BIN)/python -m pytest tests/cluster  # they share one cluster of Ray, and are skipped without the extra `cluster`

test-cluster: $(VENV)/.ready  ## every kind of failure on a cluster of three nodes; `test` has one of each
	KEDGE_CLUSTER_MATRIX=1 $(BIN)/python -m pytest tests/cluster

# The tests of encoders and pixels with the older of the two lines of transformers; `test` runs them with the newest.
test-transformers4: build/venv-transformers4/.ready
	build/venv-transformers4/bin/python -m pytest tests/encoders/test_encoders.py tests/encoders/test_plain.py tests/images/test_pixels.py

build/venv-transformers4/.ready: pyproject.toml constraints-torch.txt
	$(PYTHON) -m venv build/venv-transformers4
	$(call torch,build/venv-transformers4/bin/python)
	build/venv-transformers4/bin/python $(PIP) -e . 'transformers>=4.57,<4.58' pytest hypothesis
	touch $@

# open_clip asks for torchvision, whose wheels want a torch with CUDA: it is installed without its dependencies, then
# given those that matter here. Its imports of torchvision are met by tests/support/torchvision_stub.py, unless one is there.
test-openclip: build/venv-openclip/.ready
	build/venv-openclip/bin/python -m pytest tests/encoders/test_openclip.py

build/venv-openclip/.ready: pyproject.toml constraints-torch.txt
	$(PYTHON) -m venv build/venv-openclip
	$(call torch,build/venv-openclip/bin/python)
	build/venv-openclip/bin/python $(PIP) -e . ftfy regex tqdm huggingface_hub pytest hypothesis
	build/venv-openclip/bin/python $(PIP) --no-deps 'open_clip_torch>=3.0'
	touch $@

# The files for other programs, with Label Studio's SDK and FiftyOne; neither needs its server or database for this.
test-tools: build/venv-tools/.ready
	build/venv-tools/bin/python -m pytest tests/labelling/test_outside_tools.py

build/venv-tools/.ready: pyproject.toml constraints-torch.txt
	$(PYTHON) -m venv build/venv-tools
	$(call torch,build/venv-tools/bin/python)
	build/venv-tools/bin/python $(PIP) -e . 'label-studio-sdk>=2' 'fiftyone>=1' pytest hypothesis
	touch $@

docs: $(VENV)/.ready  ## the site, in build/docs; a warning is an error
	$(BIN)/sphinx-build -q -W --keep-going -b html -d build/doctrees docs build/docs

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	! grep -rnE --include="*.md" "^(<{7}|>{7}) " *.md docs  # leftovers of a merge, which no other check sees

bench: $(VENV)/.ready  ## speed and memory, as ratios in one run
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/extraction.py

load: $(VENV)/.ready  ## 50 clients of the service for a minute: errors, latency, memory
	$(BIN)/python benchmarks/load.py

# Hostile trials with a new seed each time. FUZZ_SEED=… repeats a campaign, FUZZ_TRIAL=PART:NUMBER one trial of it.
FUZZ_MINUTES ?= 15
fuzz: $(VENV)/.ready
	FUZZ_MINUTES=$(FUZZ_MINUTES) $(BIN)/python -m pytest tests/fuzz

clean:
	rm -rf $(VENV) build docs/gallery .pytest_cache .mypy_cache .ruff_cache .hypothesis
