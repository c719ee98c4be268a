# Two commands do everything on a fresh machine: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo test check format soak bench clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.installed  ## the main job, end to end, under five minutes
	$(BIN)/assay demo

test: $(VENV)/.installed  ## the default suite
	$(BIN)/pytest -n 2

check: $(VENV)/.installed  ## format, lint, types, imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

soak: $(VENV)/.installed  ## hundreds of kills; an hour
	$(BIN)/pytest -m soak --override-ini addopts=-ra tests

bench: $(VENV)/.installed  ## peers side by side; installs their packages
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/loader.py
	$(BIN)/python benchmarks/trainer.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build
