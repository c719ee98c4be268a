# Two commands do everything on a fresh machine: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo test test-slow check format soak mutants bench clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.installed  ## the main job, end to end, under five minutes
	$(BIN)/assay demo

test: $(VENV)/.installed  ## the quick proof: a few minutes, every property in a short form
	$(BIN)/pytest -n 2 --dist worksteal --durations=20

test-slow: $(VENV)/.installed  ## what is real but slow: kills, sweeps, whole campaigns; half an hour
	$(BIN)/pytest -n 2 --dist worksteal --durations=20 -m 'slow and not soak'

check: $(VENV)/.installed  ## format, lint, types, imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

soak: $(VENV)/.installed  ## hundreds of kills; a quarter of an hour
	$(BIN)/pytest -n 2 --dist worksteal -m soak tests

mutants: $(VENV)/.installed  ## small wrong programs that the tests must notice, room by room; ALL=1 takes hours
	PYTHONPATH=src:tests $(BIN)/python -m mutants.drive $(if $(ALL),--all)

# The peers live in environments of their own on top of ours, so that none of our pins moves: one for the loader's,
# one for the trainer's, whose needs contradict each other. MosaicML's package asks for an older NumPy and
# transformers than it needs, hence --no-deps and what it really imports.
.venv-bench-%/.installed: $(VENV)/.installed
	$(BIN)/python -m venv .venv-bench-$*
	$(BIN)/python -c "import site; print(f'import site; site.addsitedir({site.getsitepackages()[0]!r})')" \
	  > "$$(.venv-bench-$*/bin/python -c 'import site; print(site.getsitepackages()[0])')/assay.pth"
	.venv-bench-$*/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench-$*]'
	if [ $* = loader ]; then \
	  .venv-bench-$*/bin/pip install --quiet --disable-pip-version-check --no-deps mosaicml-streaming==0.13.0; \
	fi
	touch $@

bench: .venv-bench-loader/.installed .venv-bench-trainer/.installed  ## peers side by side
	.venv-bench-loader/bin/python benchmarks/loader.py
	.venv-bench-trainer/bin/python benchmarks/trainer.py
	$(BIN)/python benchmarks/evidence.py
	$(BIN)/python benchmarks/evidence_scaling.py
	$(BIN)/python benchmarks/plan.py
	$(BIN)/python benchmarks/faults.py
	$(BIN)/python benchmarks/commands.py

clean:
	rm -rf $(VENV) .venv-bench-* .mypy_cache .pytest_cache .ruff_cache build
