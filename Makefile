# Every target makes the environment it needs; nothing but Python 3.10+ and make is assumed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test lint bench clean
.DEFAULT_GOAL := demo

$(VENV)/.ready: pyproject.toml constraints-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-cpu.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.ready  ## the main job on simulated features
	$(BIN)/kedge demo --out build/demo

test: $(VENV)/.ready lint  ## style, types and every test
	$(BIN)/python -m pytest

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.ready  ## speed and memory, as ratios in one run
	$(BIN)/python benchmarks/stata.py

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
