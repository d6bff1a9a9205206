# make quickstart   a line trains end to end through Prefect, on sample text (about 3 minutes after installation)
# make test         lint, types and tests
# make down         ends the server and the workers that quickstart started
# make format       puts the sources into the project's format
# make crash        the long kill-and-resume suite, property tests with 20,000 examples each, hub faults at random
# make compat       engine and kernels on the oldest torch that we run on, in an environment of its own (7 GB)
#
# VENV=DIR uses another virtual environment, PYTHON=python3.12 another interpreter for a new one.
# make quickstart MODEL=llama-cpu (or gpt2-cpu) trains another model than nano-cpu.

PYTHON ?= python3
VENV ?= .venv
MODEL ?= nano-cpu
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -rs -m "not gpu"

.PHONY: quickstart test down format crash compat
.DELETE_ON_ERROR:

quickstart: $(VENV)/.nstrain
	$(BIN)/python examples/quickstart/run.py --model $(MODEL)

test: $(VENV)/.nstrain-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST)

# Another environment may have started what runs here: its record says so.
RECORD := $(HOME)/.nstrain/prefect/server.json

down:
	@if [ -x $(BIN)/nstrain ]; then exec $(BIN)/nstrain down; fi; \
	echo "make down: $(BIN)/nstrain does not exist, so nothing was asked to end."; \
	if grep -q '"pid"' $(RECORD) 2>/dev/null; then \
		echo "$(RECORD) names processes of a server that another environment started."; \
		echo "End them with that environment: make down VENV=DIR"; \
		exit 1; \
	fi; \
	echo "No server is recorded in $(RECORD) either."

format: $(VENV)/.nstrain-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

crash: $(VENV)/.nstrain-dev
	NSTRAIN_CRASH_ALL=1 $(PYTEST) --timeout=14400 tests/crash tests/property tests/unit/data/test_source_files.py

# Triton 3.5's interpreter fails with numpy 2.4. OLDEST may name a build for the CPU, which brings no CUDA packages.
COMPAT ?= $(VENV)/oldest
OLDEST ?= torch==2.9.1

compat: $(COMPAT)/.oldest
	OMP_NUM_THREADS=1 $(COMPAT)/bin/python -m pytest -rs -m "not gpu" tests/unit/engine tests/unit/kernels tests/kernels

$(COMPAT)/.oldest: pyproject.toml
	$(PYTHON) -m venv $(COMPAT)
	$(COMPAT)/bin/python -m pip install --disable-pip-version-check "$(OLDEST)" "triton==3.5.1; sys_platform == 'linux'" "numpy<2.4" \
		safetensors pydantic psutil pytest pytest-timeout hypothesis
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The stamps are remade when the wanted packages change.
$(VENV)/.nstrain: pyproject.toml constraints.txt deployments/bootstrap.py | $(BIN)/python
	$(BIN)/python -m deployments.bootstrap
	@touch $@

$(VENV)/.nstrain-dev: pyproject.toml constraints.txt deployments/bootstrap.py | $(BIN)/python
	$(BIN)/python -m deployments.bootstrap --extra dev
	@touch $@ $(VENV)/.nstrain
