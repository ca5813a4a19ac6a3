# Every target sets up what it needs; a second run starts at once. Needed beforehand: Python 3.11+ with venv, and make.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= python3
VENV := .venv
PEERS := .venv-peers
HA := .venv-ha
LOCKER := .venv-lock
BIN := $(VENV)/bin
# What was compiled is kept: tests start Python some hundred times.
export PYTHONDONTWRITEBYTECODE :=
# Hashes are demanded for every file, wheels only, and pip never resolves anything by itself.
PIP_INSTALL := pip install --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all:

.PHONY: help demo test lint format types unit full chaos sim soak docs bench outside lock clean

help:  ## show this list
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

demo: $(VENV)/stamp-base  ## gateway, swarm, receipt, offline check, one flipped byte refused
	@$(BIN)/python -m gateway demo

test: lint unit  ## everything CI runs: lint, types, tests

lint: $(VENV)/stamp-test  ## ruff check, ruff format --check, mypy --strict
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(VENV)/stamp-test $(HA)/stamp  ## the tests alone: first side by side, then those that must run alone
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not serial"
	$(BIN)/python -m pytest -q -m serial || test $$? -eq 5  # 5: no test is serial

full: export TALLYSTICK_FULL := 1
full: unit  ## the tests with all that a run draws a share of: every seed, every process

chaos: $(VENV)/stamp-test $(HA)/stamp  ## the nightly faults: databases, stand-bys and nodes that die under load
	@TALLYSTICK_CHAOS=1 $(BIN)/python -m pytest -q -n 0 --timeout 1800 tests/pg tests/chaos

sim: $(VENV)/stamp-test  ## play one seed of the simulator again (SEED=123)
	@$(BIN)/python -m tests.sim $(or $(SEED),1)

soak: $(VENV)/stamp-test  ## play seeds on all cores until stopped, or as many as SEEDS=n says
	@SEEDS="$(SEEDS)" $(BIN)/python -m tests.sim soak

format: $(VENV)/stamp-test  ## rewrite the code in the house format
	@$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .

docs: $(VENV)/stamp-test  ## write the generated tables of docs/ and verifier/js/ again
	@$(BIN)/python -m tests.house.docs
	$(BIN)/python -m tests.js.table

bench: $(VENV)/stamp-test  ## the figures of bench/README.md on this machine
	@$(BIN)/python -m bench

outside: $(VENV)/stamp-test $(PEERS)/stamp  ## checks by tools that are not ours (Go, openssl, Chromium, PyPI peers)
	@if ! test -d /usr/share/gocode/src/golang.org/x/mod && command -v apt-get >/dev/null; then
	    $(if $(filter-out 0,$(shell id -u)),sudo) apt-get install -y -q golang-go golang-golang-x-mod-dev openssl
	fi
	if ! command -v chromium chromium-browser >/dev/null && command -v apt-get >/dev/null; then
	    $(if $(filter-out 0,$(shell id -u)),sudo) apt-get install -y -q chromium
	fi
	if ! { command -v haproxy && command -v docker-compose && command -v systemd-analyze; } >/dev/null && command -v apt-get >/dev/null; then
	    $(if $(filter-out 0,$(shell id -u)),sudo) apt-get install -y -q --no-install-recommends haproxy docker-compose systemd
	fi
	PATH="$(CURDIR)/$(PEERS)/bin:$$PATH" TALLYSTICK_OUTSIDE=required $(BIN)/python -m pytest -q -rs tests/outside

lock: $(LOCKER)/stamp  ## write requirements/*.txt again from pyproject.toml (UPGRADE=1 takes newer versions)
	@compile() { $(LOCKER)/bin/uv pip compile -q --universal --python-version "$${PY:-3.11}" --generate-hashes --no-header \
	    $(if $(UPGRADE),--upgrade) "$$@"; }
	compile pyproject.toml -o requirements/verifier.txt
	compile pyproject.toml --extra gateway --extra rules --group build -o requirements/base.txt
	compile pyproject.toml --extra gateway --extra rules --extra postgres --group test -o requirements/test.txt
	compile --group peers -o requirements/peers.txt
	compile pyproject.toml --extra gateway --extra rules --extra postgres --group build -o requirements/gateway.txt
	compile --group patroni -o requirements/patroni.txt
	compile --group ha -o requirements/ha.txt
	PY=3.12 compile --group peers-newer --no-deps -o requirements/peers-newer.txt

clean:  ## remove environments and caches, never a data directory
	@rm -rf $(VENV) $(PEERS) $(HA) $(LOCKER) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info

# --- set-up ---------------------------------------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/stamp-base: requirements/base.txt pyproject.toml | $(BIN)/python
	@echo "setting up $(VENV) from requirements/base.txt"
	$(BIN)/python -m $(PIP_INSTALL) -r requirements/base.txt
	PYTHONWARNINGS=ignore::UserWarning $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/stamp-test: requirements/test.txt $(VENV)/stamp-base
	@echo "setting up $(VENV) from requirements/test.txt"
	$(BIN)/python -m $(PIP_INSTALL) -r requirements/test.txt
	touch $@

$(PEERS)/stamp: requirements/peers.txt requirements/peers-newer.txt
	@$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m $(PIP_INSTALL) -r requirements/peers.txt
	$(PEERS)/bin/python -m $(PIP_INSTALL) --ignore-requires-python -r requirements/peers-newer.txt
	touch $@

# Two of its packages exist as source only: their tools come from the same file, so that nothing unhashed is fetched.
$(HA)/stamp: requirements/ha.txt
	@$(PYTHON) -m venv $(HA)
	awk '/^[^ ]/ { own = /^(packaging|setuptools|wheel)==/ } own' requirements/ha.txt > $(HA)/tools.txt
	$(HA)/bin/python -m $(PIP_INSTALL) -r $(HA)/tools.txt
	$(HA)/bin/python -m $(PIP_INSTALL) --no-binary python-etcd,ydiff --no-build-isolation -r requirements/ha.txt
	touch $@

$(LOCKER)/stamp:
	@$(PYTHON) -m venv $(LOCKER)
	$(LOCKER)/bin/python -m pip install --quiet --disable-pip-version-check uv
	touch $@
