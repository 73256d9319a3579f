# Needs make and Python 3.11 or newer; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
PARALLEL := --numprocesses=5 --no-loadscope-reorder
# What depends on the version of Python. The lock has Django 6 for Pythons from 3.12 on, and Django 5 for 3.11.
NEWER := 3.13
PYTEST_NEWER := .venv-$(NEWER)/bin/python -m pytest -o cache_dir=.venv-$(NEWER)/pytest_cache \
  tests/unit tests/integration/testing tests/integration/library/test_frameworks.py
BENCHES := $(sort $(wildcard bench/bench_*.py))

# Containers often forbid bytecode. Without it every test process rewrites all assertions, and every process that a test starts
# compiles the whole tree again. Empty means allowed.
test test-newer again quick: export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help up test test-newer again quick check audit fix dist bench sim chaos mutants deploy-test pictures python again-newer runtime dev services ui

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

up: runtime ui ## Start Hourbell on 127.0.0.1:8080 with its own PostgreSQL; Ctrl-C stops it
	@exec $(BIN)/hourbell up

test: check services ui ## Lint, types, and all tests, on servers of their own
	$(BIN)/python -m pytest $(PARALLEL) --durations=10

test-newer: services ui ## Tests of the library, the testing kit and Django on Python 3.13, in an environment of its own
	@python=$$(scripts/python $(NEWER)) || { \
	  echo "hourbell: no Python $(NEWER) was found: its tests are SKIPPED" >&2; test "$$CI" != true; exit; }; \
	"$$python" scripts/setup requirements-dev.lock .venv-$(NEWER) \
	  && $(PYTEST_NEWER) $(PARALLEL)

again: ## Rerun the tests that failed last, one at a time
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures=none

quick: check services ui ## Lint, types and the fast tests (two minutes): for every change
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow"

check: dev ## Lint, formatting, types and security checks
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml src

audit: dev ## Check dependencies for known vulnerabilities; needs network access
	$(BIN)/pip-audit --strict --disable-pip --no-deps --requirement requirements.lock

fix: dev ## Apply automatic lint and formatting fixes
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

dist: dev ## Build the wheel, the source distribution and the SBOM into dist/
	$(BIN)/python -m hatchling build -d dist
	$(PYTHON) scripts/sbom > dist/hourbell.cdx.json

bench: dev ## Run the benchmarks; each prints one JSON line
	@set -e; for bench in $(BENCHES); do $(BIN)/python $$bench; done

sim: dev ## Simulate weeks of operation with injected crashes; SEED= and DAYS= set seed and length
	SIM_SEED=$(SEED) SIM_DAYS=$(DAYS) $(BIN)/python -m pytest tests/simulation -q

chaos: dev services ## Inject faults into real processes and check the results; SEED=, MINUTES=, FAULTS= set which
	PYTHONPATH=tests $(BIN)/python -m chaos.rig $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(FAULTS),--faults $(FAULTS)) $(if $(STANDBY),--standby $(STANDBY))

mutants: dev services ## Mutation tests: break the product in one place at a time; a test must fail
	$(BIN)/python tests/mutants/mutants.py $(MUTANTS)

deploy-test: dev services ui ## Run deploy/ in empty Debian roots and render its chart; as root, with network access (about five minutes)
	$(BIN)/python -m pytest tests/deployment tests/deployment/debian_checks.py tests/deployment/helm_checks.py

pictures: dev services ui ## Retake the README screenshots (about 15 minutes)
	PYTHONPATH=tests $(BIN)/python -m ui.pictures

# The rest serves the targets above, and .ci/run.

again-newer:
	$(PYTEST_NEWER) --last-failed --last-failed-no-failures=none

runtime: python
	@$(PYTHON) scripts/setup requirements.lock

dev: python
	@$(PYTHON) scripts/setup requirements-dev.lock

python:
	@command -v $(PYTHON) >/dev/null || { echo "Hourbell needs Python 3.11 or newer, and there is no $(PYTHON) in the PATH: install it, or name one with make PYTHON=…" >&2; exit 1; }

# Without its files the server works, and says how to build them.
ui: python
	@$(PYTHON) scripts/ui || echo "hourbell: continuing without the dashboard" >&2

services: dev
	@$(BIN)/python tests/services.py
