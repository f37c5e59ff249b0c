# Every target works from a fresh clone with Python 3.11+, make and git: .venv is made on the way.
# PYTHON=python3.13 VENV=.venv-3.13 make test    another Python, in an environment beside .venv
# PIP_ARGS="..." make test                       more arguments for pip

PYTHON ?= python3
PIP_ARGS ?=
PYTEST_ARGS ?=
# One process more than there are cores, since some tests wait; each gets whole files, whose tests share fixtures.
PARALLEL = -n $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --dist loadfile --no-loadscope-reorder
# Compiled tests and sources are kept in __pycache__: without, every process of the tests compiles them again.
unexport PYTHONDONTWRITEBYTECODE
VENV ?= .venv
BIN := $(VENV)/bin
PEER_VENV := $(VENV)-peer
PEER_BIN := $(PEER_VENV)/bin
QUICKSTART_EXTRAS := figures,jpeg
TEST_EXTRAS := dev,docs,figures,export,openvino,int8,serve,track,mlflow,wandb,jpeg,parquet,hdf5,tiff,dicom,detect
CLUSTER_EXTRAS := ray,cloud
CLUSTER_PACKAGES := moto[server]
PEERS := timm torchvision transformers jax flax pycocotools fastapi litserve
AXE := axe-core@4.14.0
BENCHMARKS := benchmarks/startup.py benchmarks/synthetic.py

.DEFAULT_GOAL := help
.PHONY: help quickstart test test-browser browser-installed test-cluster cluster-installed test-peer peers-installed peers-offered check lint types docs docs-serve notebooks figures format bench clean same-python

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "make %-12s %s\n", $$1, $$2}'

quickstart: $(VENV)/.installed-quickstart  ## install, then pre-train, fine-tune and compare a small Vision Transformer, and write a report
	$(BIN)/vitlab quickstart

# Types and documentation take one core half a minute, so they are checked beside the first tests; what they say stands at the end,
# and at once if they fail.
test: lint  ## install, then check and run every test that needs no browser, no cluster and no other library
	@mkdir -p build
	@{ $(MAKE) --no-print-directory -k types docs >build/checked.txt 2>&1; code=$$?; [ $$code = 0 ] || cat build/checked.txt; exit $$code; } & \
	checks=$$!; \
	$(BIN)/python -m pytest $(PARALLEL) -m "not browser and not cluster" $(PYTEST_ARGS); tests=$$?; \
	wait $$checks; checked=$$?; cat build/checked.txt; \
	[ $$checked = 0 ] || echo "error: the types or the documentation are wrong, see above" >&2; \
	[ $$tests = 0 ] && [ $$checked = 0 ]

test-browser: $(VENV)/.installed-browser  ## install Playwright, axe-core and a Chromium, then run the tests of the pages in it
	VITLAB_AXE=$(VENV)/browser/node_modules/axe-core/axe.min.js $(BIN)/python -m pytest -m browser $(PYTEST_ARGS)

test-cluster: $(VENV)/.installed-cluster  ## install Ray, then run the tests that start a cluster on this machine
	$(BIN)/python -m pytest -m cluster $(PYTEST_ARGS)

test-peer: $(PEER_VENV)/.installed  ## install timm, torchvision, transformers and Flax into .venv-peer, then run the tests that compare with them
	$(PEER_BIN)/python -m benchmarks.peers
	$(PEER_BIN)/python -m pytest $(PARALLEL) -m peer $(PYTEST_ARGS)

lint: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

check: lint  ## format, lint, types and the documentation, without the tests
	@$(MAKE) --no-print-directory -j2 types docs

types: $(VENV)/.installed-test  ## check the types alone
	$(BIN)/mypy --strict

docs: $(VENV)/.installed-test  ## build the documentation into build/site; a warning or a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: $(VENV)/.installed-test  ## show the documentation at http://127.0.0.1:8000 and rebuild it on every change
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --strict

notebooks: $(VENV)/.installed-test  ## write the lessons of docs/course as notebooks into build/notebooks
	$(BIN)/python -m docs.make_course notebooks

figures: $(VENV)/.installed-test  ## run the lessons of docs/course and draw their figures again
	$(BIN)/python -m docs.make_course figures

format: $(VENV)/.installed-test  ## put the code into its format and fix what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-test  ## run every benchmark that needs nothing but this checkout
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script; done

clean:  ## remove .venv, .venv-peer and everything that was generated
	rm -rf $(VENV) $(PEER_VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: vitlab needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

same-python: $(BIN)/python
ifneq ($(origin PYTHON),file)
	@test "$$($(PYTHON) -V)" = "$$($(BIN)/python -V)" || { echo "error: PYTHON is $$($(PYTHON) -V), and $(VENV) was made with $$($(BIN)/python -V); hint: set VENV to another folder, or run make clean" >&2; exit 1; }
endif

# A stamp is renewed only when what is to be installed has changed.
$(VENV)/.installed-quickstart: pyproject.toml constraints.txt | same-python
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e ".[$(QUICKSTART_EXTRAS)]"
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt | same-python
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e ".[$(TEST_EXTRAS)]"
	@touch $@ $(VENV)/.installed-quickstart

$(VENV)/.installed-browser: constraints.txt | $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt playwright
	npm install --silent --no-fund --no-audit --prefix $(VENV)/browser $(AXE)
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do command -v $$name >/dev/null && exit 0; done; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } \
		|| { echo "error: there is no Chromium, and apt-get cannot install it; hint: put one on PATH" >&2; exit 1; }
	@touch $@

browser-installed: $(VENV)/.installed-browser

$(VENV)/.installed-cluster: pyproject.toml constraints.txt | $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e ".[$(CLUSTER_EXTRAS)]" $(CLUSTER_PACKAGES)
	@touch $@

cluster-installed: $(VENV)/.installed-cluster

$(PEER_BIN)/python:
	$(PYTHON) -m venv $(PEER_VENV) || { rm -rf $(PEER_VENV); exit 1; }

$(PEER_VENV)/.installed: pyproject.toml constraints.txt constraints-peer.txt | $(PEER_BIN)/python
	$(PEER_BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -c constraints-peer.txt -e ".[$(TEST_EXTRAS),hub]" $(PEERS) \
		|| { echo "error: pip cannot install the peers ($(PEERS)) into $(PEER_VENV)" >&2; exit 1; }
	@touch $@

peers-installed: $(PEER_VENV)/.installed

peers-offered:  # succeeds if the package index has the peers in any version
	@$(PEER_BIN)/python -m pip install --quiet --dry-run --no-deps $(PIP_ARGS) $(PEERS)
