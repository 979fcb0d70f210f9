# Everything runs from a virtual environment that these commands make themselves: .venv, or one that
# is named after the version where another Python is asked for (make test PYTHON=python3.13).
ifeq ($(origin PYTHON),undefined)
PYTHON := python3
VENV ?= .venv
else
VENV ?= .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
endif
VENV := $(VENV)
PYTEST_FLAGS ?= -n 2 --dist worksteal
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
TORCH := torch==2.13.0

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo deploy-demo test test-slow test-all test-offline test-annotations test-processors test-experiments test-data test-adapters test-wheel test-oldest test-engine test-browser lint format types docs docs-version results dist dev clean

help: ## what can be done
	@echo "posterity: a posterior is a file you can send"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.demo ## fuse posteriors trained at several sites and show what came out
	$(BIN)/posterity demo

ifeq ($(ENGINE),nvflare)
deploy-demo: .venv-engine/.engine
	.ci/apart .venv-engine/bin/python -m examples.deploy
else
deploy-demo: $(VENV)/.demo ## run four hospitals as processes; one is killed, one is forgotten (ENGINE=nvflare)
	$(BIN)/python -m examples.deploy
endif

test: $(VENV)/.test ## run the tests (PYTEST_FLAGS="-n 0 -k ledger" for a few)
	$(PYTEST) $(PYTEST_FLAGS)

test-slow: $(VENV)/.test ## run the tests that take more than a second: simulations, pages
	$(PYTEST) $(PYTEST_FLAGS) -m slow

test-all: $(VENV)/.test ## run both, which are collected once
	$(PYTEST) $(PYTEST_FLAGS) -m 'not experiment and not data and not wheel and not engine and not browser'

test-offline: $(VENV)/.test ## run both without a network (on Linux)
	.ci/offline $(MAKE) test-all

test-annotations: $(VENV)/.test ## run the tests with arguments and results checked against annotations
	POSTERITY_ANNOTATIONS=1 $(PYTEST) $(PYTEST_FLAGS)

test-processors: $(VENV)/.test ## run the tests as on other processors (PROCESSORS="Prescott Haswell" for two)
	$(BIN)/python -m tests.processors $(PROCESSORS) --options='$(PYTEST_FLAGS)'

test-experiments: $(VENV)/.test ## run small experiments and benchmarks, to see that they still run
	$(PYTEST) $(PYTEST_FLAGS) -m 'experiment and not data'

test-data: $(VENV)/.test ## run the tests that need the larger data sets (POSTERITY_DATA)
	$(PYTEST) $(PYTEST_FLAGS) -m data tests/experiments

test-adapters: $(VENV)/.torch ## install torch and run the tests that need it, which others skip
	$(BIN)/python -c 'import torch'
	$(PYTEST) -n 0 -m 'not browser' tests/adapters/test_onnx.py $(wildcard tests/adapters/test_torch*.py)

test-wheel: $(VENV)/.test ## build a wheel, install it elsewhere; run its demo, README and cookbook
	$(PYTEST) -n 0 -m wheel tests/anywhere

test-browser: $(VENV)/.browser ## open reports in Chromium, where that is installed
	$(PYTEST) -n 0 -m browser tests/reporting

test-oldest: $(VENV)/.publish ## run quick tests with the oldest releases that pyproject.toml allows
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-oldest
	$(BIN)/uv pip install --quiet --python .venv-oldest --resolution lowest-direct --editable '.[test]'
	.venv-oldest/bin/python -m pytest $(PYTEST_FLAGS) -W ignore::DeprecationWarning tests/test_ledger.py \
	  tests/artifact tests/graphs tests/models tests/federation/test_run.py tests/fusion/test_fuse.py \
	  tests/adapters tests/conformance tests/runtime/test_progress.py

test-engine: .venv-engine/.engine ## run deployments over NVFlare and Flower, in namespaces of their own
	.ci/apart .venv-engine/bin/python -m pytest -n 0 -m engine -W ignore tests/deployment

lint: $(VENV)/.lint ## check style, and which part imports which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

format: $(VENV)/.lint ## put style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.lint $(VENV)/.test ## check types
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/.docs ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-version: $(VENV)/.docs ## commit a release's documentation (VERSION=0.1) to the local branch gh-pages; nothing is pushed
	@test -n "$(VERSION)" || { echo "Name the version: make docs-version VERSION=0.1" >&2; exit 1; }
	export DOCS_VERSIONS=mike NO_MKDOCS_2_WARNING=1 PATH="$(abspath $(BIN)):$$PATH" && \
	  mike deploy --update-aliases $(VERSION) latest && mike set-default latest

results: $(VENV)/.test ## say which results files are older than the code that they depend on
	$(BIN)/python -m experiments.provenance

dist: $(VENV)/.publish ## build the wheel and the source distribution into dist/, and check them
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

dev: $(VENV)/.dev ## install everything that development needs

clean: ## remove what these commands made, the environments too
	rm -rf $(VENV) .venv .venv-* .cache .hypothesis .pytest_cache .ruff_cache build dist site posterity-demo posterity-deploy
	find src tests experiments -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# One stamp an extra, so that the demo does not wait for what only the tests need.
$(VENV)/.demo $(VENV)/.test $(VENV)/.lint $(VENV)/.docs $(VENV)/.publish $(VENV)/.dev: $(VENV)/.%: pyproject.toml | $(VENV)/.python
	@echo "Installing posterity[$*] into $(VENV) (once; it can take a few minutes)"
	@$(PIP) --editable '.[$*]'
	@touch $@

$(VENV)/.browser: pyproject.toml $(VENV)/.test
	@echo "Installing posterity[browser] into $(VENV) (once; it can take a few minutes)"
	@$(PIP) --editable '.[browser]'
	@touch $@

# Apart from the other tests, because it is large. One version, so that a run can be repeated.
$(VENV)/.torch: Makefile $(VENV)/.test
	@echo "Installing $(TORCH) into $(VENV) (once; it can take a few minutes)"
	@$(PIP) --editable '.[torch]' '$(TORCH)'
	@touch $@

# An environment of its own, since engines pin what others take newer (docs/engines.md).
.venv-engine/.engine: pyproject.toml
	@echo "Installing posterity[nvflare,flower] into .venv-engine (once; it can take a few minutes)"
	@$(PYTHON) -m venv .venv-engine
	@.venv-engine/bin/python -m pip install --quiet --disable-pip-version-check \
	  --editable '.[nvflare,flower]' beartype hypothesis pytest pytest-timeout pytest-xdist
	@touch $@

$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "posterity needs Python 3.11 or later, and there is no '$(PYTHON)'." >&2; \
	  echo "Install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "posterity needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) -V 2>&1)." >&2; \
	  echo "Name a later one: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV); \
	  echo "Could not make $(VENV); on Debian and Ubuntu, install python3-venv first." >&2; exit 1; }
	@touch $@
