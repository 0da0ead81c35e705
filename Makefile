# make run   set up, and run the first bug (the README's first command)
# make test  set up, and pass the tests (the README's second command, and CI's)
# make test-all   and longer: every variant, 50,000 spoilt run folders, mutations, faults of launches,
#            and those tests of launches again without shared imports
# make docker  build the container, run nights in it and check them; CI does where an engine answers
# make setup   only set up
# make bench where a run's time goes, and the time of every scenario
PYTHON ?= python3
VENV ?= .venv
# On a machine with GPUs any torch will do that suits its driver: make run TORCH=torch
TORCH ?= torch==2.13.0
SCENARIO ?= bf16_clip

# What grading does, which must not hang on an assert: once more under python -O.
GRADING := $(addprefix tests/test_,$(addsuffix .py,grade proof records catalogued plan shapes numbers oracles))

# Buggy and fixed of every scenario, and of each kind of third variant one: a control, a reference on one
# rank, a fix that is none, a release before the bug, a newer one that still has it, another trigger.
VARIANTS := buggy or fixed or reproduced or (bf16_clip and (control or reference)) \
  or (tied_embedding_order and order_fix) or (clip_max_for_min and before) or alive or eight

# Tests that launch nothing, on as many cores as there are, up to four.
SIDE_BY_SIDE := -n logical --maxprocesses 4 --dist worksteal

BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test test-all lint quick scenarios docker setup bench clean

run: $(READY)
	$(BIN)/python -m harness run scenario=$(SCENARIO)

test: lint quick scenarios

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

quick: $(READY)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)
	$(BIN)/python -m pytest -m browser
	$(BIN)/python -m tests.fuzz --count 2000
	$(BIN)/python -O -m pytest -q -W ignore::pytest.PytestConfigWarning $(GRADING)

scenarios: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "launch and not scenario and not cold"
	$(BIN)/python -m pytest -m scenario -k "$(VARIANTS)"

test-all: test
	$(BIN)/python -m pytest -m "launch and cold"
	$(BIN)/python -m pytest -m scenario
	$(BIN)/python -m tests.fuzz --count 50000 --seed 1
	$(BIN)/python -m tests.mutations
	$(BIN)/python -m tests.chaos --faults 200 --seed 1 --out build/chaos

# Needs nothing that is set up here: DOCKER_NIGHT=--where-possible, for one, is handed on.
docker:
	$(PYTHON) -m tests.docker_night $(DOCKER_NIGHT)

setup: $(READY)

bench: $(READY)
	$(BIN)/python -m harness bench $(SCENARIO) --all

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	touch $(READY)
