# Every target that needs packages makes .venv first, so `make demo` and `make test` are all the set-up there is.

SHELL := /bin/sh
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
PY := .venv/bin/python

# Settings of a target are given as `make up DATA=/var/lib/upcall`; what they mean is in `make help`.
DATA ?= .upcall
INSTANCES ?= 1
export INSTANCES
# More arguments for pytest, for example ARGS="-k timeout -x".
ARGS ?=
# Test processes side by side; most of a test's time is waiting.
JOBS ?= 4

.PHONY: help setup test test-faults test-containers lint lint-ci types schemas schemas-ci chart-ci up demo bench lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## install the locked packages into .venv (every other target does so by itself)
	@sh deploy/setup.sh

test: setup ## run the tests (JOBS=4 side by side; ARGS="-k name -x" goes to pytest)
	@$(PY) -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-faults: export UPCALL_FAULTS = long
test-faults: setup ## run the fault tests in their long form
	@$(PY) -m pytest -m "faults or slow" --timeout 900 $(ARGS)

test-containers: setup ## run the container tests (makes an engine and images where they are missing)
	@bash .ci/containers.sh $(ARGS)

lint: setup ## format, and fix what can be fixed
	@$(PY) -m ruff format --quiet
	@$(PY) -m ruff check --fix

lint-ci: setup ## look at format and lint rules, and change nothing
	@$(PY) -m ruff format --check --quiet || { $(PY) -m ruff format --check; exit 1; }
	@$(PY) -m ruff check

types: setup ## check the types
	@$(PY) -m pyright

schemas: setup ## write the JSON Schemas, the AsyncAPI document and docs/states.md anew
	@$(PY) -m upcall_contracts.generate
	@$(PY) -m upcall_contracts.transitions > docs/states.md

schemas-ci: setup ## fail where they differ from the contracts
	@$(PY) -m upcall_contracts.generate --check
	@$(PY) -m upcall_contracts.transitions | diff -u docs/states.md - || { echo "drifted: docs/states.md: make schemas" >&2; exit 1; }

chart-ci: setup ## lint the Helm chart, and check what it renders against Kubernetes' schemas
	@sh .ci/chart.sh

up: setup ## NATS, Redis and all services on this machine (DATA= NATS_PORT= REDIS_PORT= INSTANCES=)
	@$(PY) -m upcall_deploy.up --with-parent --data $(DATA) \
	  $(if $(NATS_PORT),--nats-port $(NATS_PORT)) $(if $(REDIS_PORT),--redis-port $(REDIS_PORT))

demo: export AUTO := $(AUTO)
demo: setup ## a child asks its parent, which is you (AUTO=1: a script answers)
	@$(PY) -m examples.demo

bench: export JSON := $(JSON)
bench: setup ## the durable round trip beside the raw floor (JSON=1: also as one JSON line)
	@$(PY) -m bench

RESOLVE = $(PY) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-header --no-annotate --no-emit-index-url --no-emit-find-links $(if $(UPGRADE),--upgrade)
LOCK = $(RESOLVE) pyproject.toml --no-emit-package upcall-contracts --no-emit-package upcall

lock: setup ## resolve the lock files anew (UPGRADE=1: to the newest versions)
	@$(LOCK) --group build --extra otel -o requirements.lock
	@$(LOCK) --group dev --all-extras -c requirements.lock -o requirements-dev.lock
	@$(RESOLVE) --group chart -o deploy/k8s/check.lock
	@! grep -nE '://|file:|^/|^-e' requirements.lock requirements-dev.lock deploy/k8s/check.lock || \
	  { echo "lock: a lock file names a place (above); nothing in it may" >&2; exit 1; }

clean: ## remove .venv and everything built or cached (what `make up` keeps in .upcall stays)
	@rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
