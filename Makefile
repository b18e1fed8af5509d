# `make demo` and `make test` do all set-up by themselves; a second run skips it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-slow check format bench bench-large clean

demo: $(READY)
	$(BIN)/dkaf demo

test: $(READY)
	$(BIN)/pytest -m "not slow"

test-slow: $(READY)
	$(BIN)/pytest -m slow

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy benchmarks

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python -m benchmarks

bench-large: $(READY)
	$(BIN)/python -m benchmarks --large
	$(BIN)/python -m benchmarks.grid --out runs/grid-estimate

clean:
	rm -rf $(VENV) build runs .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch first and by itself: pip then never weighs another version of it, each some gigabytes to fetch.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dkaf needs Python 3.11 or later, this is " + sys.version.split()[0] + "; run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@
