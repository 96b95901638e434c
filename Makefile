# One verb each; `make` alone lists them. Everything is set up on first use, in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format fuzz oldest multinode nightly show bench link clean

help:
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check torch
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,images]'
	touch $@

setup: $(STAMP) ## install into .venv, with the versions of constraints.txt

demo: $(STAMP) ## pack real text, train on 2 ranks, kill one, resume on 3, audit
	$(BIN)/python -m tools.demo.run

test: $(STAMP) ## every test
	$(BIN)/python -m pytest -q -n 2 --dist worksteal tests shardloader

check: $(STAMP) ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## let ruff rewrite what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

fuzz: $(STAMP) ## every fuzz target, some 15 seconds each (FUZZ_SECONDS=600: so long, from a new seed)
	$(BIN)/python -m tests.fuzz $(if $(FUZZ_SECONDS),--seconds $(FUZZ_SECONDS))

oldest: ## unit tests with the oldest numpy, fsspec, zstandard and torchdata admitted
	tools/oldest.sh

multinode: $(STAMP) ## train on hosts of network namespaces, lose some and take them back, audit (root)
	$(BIN)/python -m tools.multinode

nightly: $(STAMP) ## an hour's fuzzing, thirty times the property tests' examples, 5,000 chains, 50 kills, 20 epochs from a bad store, hosts lost
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -q -n 2 tests/property
	$(BIN)/python -m tests.fuzz --seconds $(or $(FUZZ_SECONDS),1000)
	$(BIN)/python -W ignore -m tests.stress.chains 5000 --jobs 2
	$(BIN)/python -W ignore -m tests.stress.kills 50
	$(BIN)/python -W ignore -m tests.stress.writes 1000
	$(BIN)/python -W ignore -m tests.stress.stores
	$(BIN)/python -m tools.multinode

show: $(STAMP) ## the figures of the README: planning, state and resume, measured here
	$(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/resume.py
	$(BIN)/python benchmarks/shuffle_quality.py
	$(BIN)/python benchmarks/flatness.py
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.writing_memory
	$(BIN)/python benchmarks/indexing.py
	$(BIN)/python benchmarks/verifying.py

bench: $(STAMP) ## feed from every loader, and write with every writer, side by side (SMALL=1: a quick look)
	$(BIN)/python -m benchmarks.feeding $(if $(SMALL),--small)
	$(BIN)/python -m benchmarks.writing $(if $(SMALL),--small)

link: $(STAMP) ## read over a link of 1 Gbit/s, 50 ms a request, beside other loaders (root; SMALL=1: a quick look)
	$(BIN)/python -m benchmarks.link $(if $(SMALL),--small)

clean: ## remove what these verbs made
	rm -rf $(VENV) .venv-oldest .azurite .demo .multinode benchmarks/.work benchmarks/.venv-peers
