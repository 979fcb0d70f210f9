# Everything runs from a virtual environment that these commands make themselves.
PYTHON ?= python3
PYTEST_FLAGS ?= -n 2 --dist worksteal
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test lint format types docs dev clean

help: ## what can be done
	@echo "posterity: a posterior is a file you can send"
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.demo ## fuse posteriors trained at several sites and show what came out
	$(BIN)/posterity demo

test: $(VENV)/.test ## run the tests (PYTEST_FLAGS="-n 0 -k ledger" for a few)
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

lint: $(VENV)/.lint ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.lint ## put style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.lint $(VENV)/.demo ## check types
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/.docs ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dev: $(VENV)/.dev ## install everything that development needs

clean: ## remove what these commands made, the environment too
	rm -rf $(VENV) .cache .hypothesis .pytest_cache .ruff_cache build dist site posterity-demo
	find src tests experiments -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# One stamp an extra, so that the demo does not wait for what only the tests need.
$(VENV)/.demo $(VENV)/.test $(VENV)/.lint $(VENV)/.docs $(VENV)/.dev: $(VENV)/.%: pyproject.toml | $(VENV)/.python
	@echo "Installing posterity[$*] into $(VENV) (once; it can take a few minutes)"
	@$(PIP) --editable '.[$*]'
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
