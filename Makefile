# Two commands do everything on a fresh machine: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Processes that test: one more than two cores, because tests that wait leave a core idle.
WORKERS ?= 3
# Where it is set, as in many images, each of the hundreds of processes of the tests compiles every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo image test test-slow test-ray test-spark test-sinks test-cookbook test-hosts test-vllm test-triton check format site soak mutants agreement bench clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.installed  ## the main job, end to end, under five minutes
	$(BIN)/assay demo

image: Containerfile  ## a container image of this commit: make image IMAGE=REGISTRY/assay:1
	docker build -f Containerfile -t $(or $(IMAGE),$(error say which: make image IMAGE=REGISTRY/assay:1)) \
	  --build-arg ASSAY_COMMIT=$$(git describe --always --dirty=.dirty --abbrev=7 --exclude='*') .

test: $(VENV)/.installed .venv-triton/.installed  ## the quick proof: a few minutes, every property in a short form
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --durations=20
	$(MAKE) test-triton

test-slow: $(VENV)/.installed  ## what is real but slow: kills, sweeps, whole campaigns; up to an hour
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --durations=20 -m 'slow and not soak'

check: $(VENV)/.installed  ## format, lint, types, imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

soak: $(VENV)/.installed .venv-ray/.installed .venv-spark/.installed  ## hundreds of kills, and what is slow a third time; hours
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m soak tests
	ASSAY_REQUIRE=$(ASSAY_REQUIRE),ray .venv-ray/bin/python -m pytest -m soak tests/integration/test_ray.py
	ASSAY_REQUIRE=$(ASSAY_REQUIRE),spark .venv-spark/bin/python -m pytest -m soak tests/integration/test_spark.py

site: $(VENV)/.installed  ## the documentation and the reference of `import assay` as pages, in build/site
	$(BIN)/mkdocs build --strict

mutants: $(VENV)/.installed  ## planted mistakes that the quick tests must notice
	$(BIN)/pytest -n 2 -m '' tests/mutants

# What only some tests or benchmarks need lives in environments of their own on top of ours, so that none of our pins
# moves. $(1): the environment; $(2): what pip installs there.
define on_top_of_ours
	$(BIN)/python -m venv $(1)
	$(BIN)/python -c "import site; print(f'import site; site.addsitedir({site.getsitepackages()[0]!r})')" \
	  > "$$($(1)/bin/python -c 'import site; print(site.getsitepackages()[0])')/assay.pth"
	$(1)/bin/pip install --quiet --disable-pip-version-check $(2)
endef
with_extra = $(call on_top_of_ours,$(1),-c constraints.txt -e '.[$(2)]')

# trackio refuses the version of pillow that all else runs with. With alembic the small MLflow opens databases.
.venv-sinks/.installed: $(VENV)/.installed
	mkdir -p build
	grep -v '^pillow=' constraints.txt > build/constraints-sinks.txt
	$(call on_top_of_ours,.venv-sinks,-c build/constraints-sinks.txt -e '.[sinks]' alembic)
	touch $@

test-sinks: .venv-sinks/.installed  ## metrics in MLflow, W&B and trackio, whose packages nothing else needs
	ASSAY_REQUIRE=$(ASSAY_REQUIRE),mlflow,wandb,trackio,alembic .venv-sinks/bin/python -m pytest tests/integration/test_sinks.py

.venv-cookbook/.installed: $(VENV)/.installed requirements-cookbook.txt
	$(call on_top_of_ours,.venv-cookbook,--no-deps -r requirements-cookbook.txt)
	touch $@

test-cookbook: .venv-cookbook/.installed  ## recipes of tinker-cookbook, unchanged, on our server
	ASSAY_REQUIRE=$(ASSAY_REQUIRE),cookbook .venv-cookbook/bin/python -m pytest -m slow tests/integration/test_cookbook.py

.venv-hosts/.installed: $(VENV)/.installed requirements-hosts.txt
	$(call on_top_of_ours,.venv-hosts,--no-deps -r requirements-hosts.txt)
	touch $@

test-hosts: .venv-hosts/.installed  ## assay's parts inside TRL, Lightning, Ray Train and others
	ASSAY_REQUIRE=$(ASSAY_REQUIRE),hosts .venv-hosts/bin/python -m pytest -m 'not soak' tests/hosts

.venv-vllm/.installed: $(VENV)/.installed requirements-vllm.txt
	$(call on_top_of_ours,.venv-vllm,--no-deps -r requirements-vllm.txt)
	touch $@

test-vllm: .venv-vllm/.installed  ## RL with rollouts of a real vLLM, on the CPU
	ASSAY_REQUIRE=$(ASSAY_REQUIRE),vllm ASSAY_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python $(BIN)/pytest -m '' tests/integration/test_vllm.py

# Servers of training APIs for benchmarks/apis.py; some ask for another Python than they need.
.venv-api-%/.installed: benchmarks/api_servers/%.txt $(VENV)/.installed
	$(call on_top_of_ours,.venv-api-$*,--no-deps --ignore-requires-python -r $<)
	touch $@

.venv-ray/.installed: $(VENV)/.installed
	$(call with_extra,.venv-ray,ray)
	touch $@

test-ray: .venv-ray/.installed  ## runs on a real Ray cluster of several nodes, whose nodes die
	ASSAY_REQUIRE=$(ASSAY_REQUIRE),ray .venv-ray/bin/python -m pytest -m 'not soak' tests/integration/test_ray.py tests/integration/test_data_on_ray.py tests/contract/test_launchers.py -k ray

.venv-spark/.installed: $(VENV)/.installed
	$(call with_extra,.venv-spark,spark)
	touch $@

test-spark: .venv-spark/.installed  ## datasets on Spark, with two executors, one of them killed; 450 MB, and Java
	ASSAY_REQUIRE=$(ASSAY_REQUIRE),spark .venv-spark/bin/python -m pytest -m 'not soak' tests/integration/test_spark.py

.venv-triton/.installed: $(VENV)/.installed
	$(call with_extra,.venv-triton,triton)
	touch $@

test-triton: .venv-triton/.installed  ## GPU kernels under Triton's interpreter; on a GPU, compiled
	ASSAY_REQUIRE=$(ASSAY_REQUIRE),triton .venv-triton/bin/python -m pytest tests/unit/models/kernels

# The peers: one environment for the loader's, one for the trainer's, whose needs contradict each other.
.venv-bench-%/.installed: $(VENV)/.installed
	$(call with_extra,.venv-bench-$*,bench-$*)
	touch $@

agreement: .venv-bench-trl/.installed  ## losses and gradients beside TRL's own
	.venv-bench-trl/bin/python -m pytest -m '' tests/agreement

bench: .venv-bench-loader/.installed .venv-bench-trainer/.installed .venv-bench-trl/.installed .venv-sinks/.installed  ## peers side by side
	.venv-bench-loader/bin/python benchmarks/loader.py
	.venv-bench-trainer/bin/python benchmarks/trainer.py
	$(BIN)/python benchmarks/scale.py
	.venv-bench-trl/bin/python benchmarks/methods.py
	$(BIN)/python benchmarks/generation.py
	$(BIN)/python benchmarks/evidence.py
	$(BIN)/python benchmarks/evidence_scaling.py
	$(BIN)/python benchmarks/plan.py
	$(BIN)/python benchmarks/triage.py
	$(BIN)/python benchmarks/faults.py
	$(BIN)/python benchmarks/commands.py
	$(BIN)/python benchmarks/serve.py --train
	$(BIN)/python benchmarks/tinker_sessions.py
	.venv-sinks/bin/python benchmarks/dashboard.py

clean:
	rm -rf $(VENV) .venv-ray .venv-spark .venv-sinks .venv-cookbook .venv-hosts .venv-vllm .venv-bench-* .mypy_cache .pytest_cache .ruff_cache build
