# Every target works from a fresh clone with Python 3.11+, make and git: .venv is made on the way.
# PYTHON=python3.12 make test    another Python        PIP_ARGS="..." make test    more arguments for pip

PYTHON ?= python3
PIP_ARGS ?=
PYTEST_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
QUICKSTART_EXTRAS := demo,figures,jpeg
TEST_EXTRAS := dev,figures,export,openvino,int8,track,jpeg,demo,parquet,hdf5
BENCHMARKS := benchmarks/startup.py benchmarks/generated.py

.DEFAULT_GOAL := help
.PHONY: help quickstart test check format bench clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "make %-12s %s\n", $$1, $$2}'

quickstart: $(VENV)/.installed-quickstart  ## install, then pre-train, fine-tune and compare a small Vision Transformer, and write a report
	$(BIN)/vitlab quickstart

test: check  ## install, then format, lint, types and every test
	$(BIN)/python -m pytest -n auto $(PYTEST_ARGS)

check: $(VENV)/.installed-test  ## format, lint and types only
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict

format: $(VENV)/.installed-test  ## put the code into its format and fix what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-test  ## run every benchmark that needs nothing but this checkout
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script; done

clean:  ## remove .venv and everything that was generated
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: vitlab needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# A stamp is renewed only when what is to be installed has changed.
$(VENV)/.installed-quickstart: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e ".[$(QUICKSTART_EXTRAS)]"
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e ".[$(TEST_EXTRAS)]"
	@touch $@ $(VENV)/.installed-quickstart
