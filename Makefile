# make run       set up, and run a first bug (the README's first command)
# make test      set up, and pass the tests (the README's second command)
# make scenarios a fifteenth of the scenarios, buggy and fixed, on the CPU: other ones each day
# make slurm     the tests on a Slurm of two nodes, which they start here: needs slurmctld, slurmd, munge
# make slow      a thirtieth of the tests that take more than about 4 s each: other ones each day
# make pythons   what needs no torch, on every Python of this machine
# make confirm   twenty recorded results, run again; report.py of six bugs
# make test-ci   what CI runs besides make test: see .ci/run
# make test-all  hours: every variant, mutations, 200 faults
# make docker    build the container, run nightlies in it and check them
# make release   build the wheel and the source archive, and try them in a new environment
# make site      write the website to build/site
# make setup     only set up
PYTHON ?= python3
VENV ?= .venv
# On a machine with GPUs choose a torch that suits its driver: make run TORCH=torch
TORCH ?= torch==2.13.0
SCENARIO ?= trainer_gas_twice

BIN := $(VENV)/bin
READY := $(VENV)/.ready
# As many tests at once as there are cores, up to four.
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

.PHONY: run test lint unit slow scenarios variants reports browser slurm pythons confirm test-ci test-all docker release site setup clean

run: $(READY)
	$(BIN)/python -m harness run scenario=$(SCENARIO)

test: lint unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(READY)
	$(PYTEST) -m "not scenario and not browser and not cold and not slow and not slurm"

slow: $(READY)
	$(PYTEST) -m "slow and not cold and not exhaustive"

# Buggy and fixed of every scenario, and one of each other kind of variant: a control, a reference on
# one rank, a fix that fails, a release before the bug, a newer one that still has it, another trigger.
VARIANTS := buggy or fixed or reproduced or (bf16_clip and (control or reference)) \
  or (tied_embedding_order and order_fix) or (clip_max_for_min and before) or alive or eight

scenarios: variants reports

variants: $(READY)
	$(BIN)/python -m pytest -m "scenario and not exhaustive" --jobs 2 -k "$(VARIANTS)" --ignore tests/scenarios/test_reports.py

reports: $(READY)
	$(PYTEST) -m "scenario and not exhaustive" tests/scenarios/test_reports.py

browser: $(READY)
	$(BIN)/python -m pytest -m "browser and not exhaustive" -rsfE tests/publish

# These tests mostly wait. The two files have a Slurm each.
slurm: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "slurm and not exhaustive" -rsfE tests/run

# Twenty recorded results, run again, and report.py of six bugs on a release by lot: other ones each day. A script
# that raises on an old release ends with exit code 3, which is no failure.
confirm: $(READY)
	$(BIN)/python -m harness confirm lane=cpu
	$(BIN)/python -m harness confirm --reports --count 6 lane=cpu || [ $$? = 3 ]

pythons: $(READY)
	$(BIN)/python -m tests.pythons

test-ci: test slow scenarios browser slurm pythons confirm

test-all: test-ci
	$(BIN)/python -m pytest -m "launch and cold"
	$(PYTEST) -m "exhaustive and not slurm and not browser"
	$(BIN)/python -m pytest -m "exhaustive and browser"
	$(BIN)/python -m pytest -m "exhaustive and slurm"
	$(BIN)/python -m pytest -m scenario
	$(BIN)/python -m tests.mutations
	$(BIN)/python -m tests.chaos --faults 200 --seed 1 --out build/chaos

# DOCKER_NIGHT=--where-possible, for example, is passed on.
docker: $(READY)
	$(BIN)/python -m tests.docker_nightly $(DOCKER_NIGHT)

# uv builds the wheel from the source archive, so both are tried. The package index is the only network.
release: $(READY)
	rm -rf build/release
	$(BIN)/uv build --out-dir build/release
	$(PYTHON) -m venv build/release/venv
	build/release/venv/bin/python -m pip install --quiet build/release/*.whl
	cd build/release && venv/bin/distributed-bugs --version && venv/bin/distributed-bugs list > list.txt
	cd build/release && echo transformers==5.5.4 | venv/bin/distributed-bugs check -r - scenario=trainer_gas_twice

site: $(READY)
	$(BIN)/distributed-bugs site --out build/site

setup: $(READY)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv "$(TORCH)"
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable ".[test]"
	touch $(READY)
