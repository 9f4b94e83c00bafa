# Every target sets up what it needs: `make run` and `make test` work on a fresh clone with Python >= 3.11 and nothing else.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
CONFIG ?= config.example.yaml
# Tests wait for a third of their time, for processes that start and answers that come late: two more workers than cores.
TEST_WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 2)))

# What is measured, is measured on the PYTHON that is asked for, in an environment of its own.
ASKED      := $(filter command environment,$(origin PYTHON))
BENCH_VENV := $(if $(ASKED),.venv-$(subst /,-,$(patsubst /%,%,$(PYTHON))),$(VENV))
MEASURE     = $(MAKE) -s --no-print-directory VENV=$(BENCH_VENV) $(BENCH_VENV)/.bench && $(BENCH_VENV)/bin/python -m

.PHONY: run test lint fmt types check bench bench-peers bulk agents instructions sim known soak audit lock clean help
.DEFAULT_GOAL := help

help:            ## what you can do here
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(VENV)/.run ## start the gateway on config.example.yaml (CONFIG=… for another); answers at once, key or no key
	@exec $(BIN)/gateway serve --config $(CONFIG)

# Processes that tests start, and each pytest worker, find the code compiled, whatever the environment prefers.
test sim soak bench bench-peers: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.dev ## all tests, TEST_WORKERS=… at a time; one that takes three minutes has hung, and fails with every thread's stack
	@$(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal --timeout 180 $(PYTEST)

lint: $(VENV)/.dev ## ruff (rules and format) and mypy strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

fmt: $(VENV)/.dev ## format the code, fix what can be fixed
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench:           ## measure against the floor and nginx, on one pinned core (PYTHON=… for another): bench-results/
	@$(MEASURE) tests.bench

bench-peers:     ## the same with LiteLLM and Portkey, each installed in its own environment
	@$(MEASURE) tests.bench --peers

instructions:    ## user-space instructions per call and event, the same figure on a busy machine (PYTHON=… for another)
	@$(MEASURE) tests.bench.instructions

sim: $(VENV)/.bench ## simulate admission under virtual time, millions of calls: its promises, then table, JSON and plots in sim-results/
	@$(BIN)/pytest -n auto --dist worksteal -m "soak or not soak" tests/sim
	@$(BIN)/python -m tests.sim

known: $(VENV)/.dev ## known cases of provider trouble, straight and through the gateway: the table of docs/benchmarks.md, in four minutes
	@$(BIN)/python -m tests.known

bulk: $(VENV)/.dev ## bulk programs of others (each installed in its own environment), straight and through the gateway: bulk-results/, half an hour
	@$(BIN)/python -m tests.bulk $(BULK)

agents: $(VENV)/.dev ## real clients and agents (each installed in its own environment), keys of two tenants, a strict target of each language
	@$(BIN)/python -m tests.agents $(AGENTS)

soak: $(VENV)/.dev ## long sweeps that `make test` leaves out, and ten times the examples of each property
	@$(BIN)/pytest -m soak --timeout 3600
	@$(BIN)/pytest -m "hypothesis and not soak" --hypothesis-profile full -n auto --dist worksteal --timeout 3600

audit: $(VENV)/audit ## look every locked package up among the known vulnerabilities (by hand, before a release: needs the network)
	@for lock in requirements.lock requirements-dev.lock requirements-bench.lock deploy/build.lock; do \
	  echo "$$lock" && $(VENV)/audit/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off -r $$lock || exit 1; done

lock:            ## renew the hashed locks from pyproject.toml (needs uv)
	@for group in "" "--group dev" "--group dev --group bench"; do \
	  uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --upgrade \
	    --no-emit-index-url --no-annotate --no-header -q $$group \
	    -o requirements$$(echo "$$group" | sed -E 's/.*--group /-/').lock; done

clean:           ## remove the environment and caches
	@rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .hypothesis build dist *.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=python3.x")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: requirements.lock pyproject.toml | $(BIN)/python
	@echo "setting up $(VENV) …"
	@$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "gateway-checkout.pth").write_text(str(pathlib.Path.cwd()) + "\n")'
	@printf '#!%s\nimport sys\n\nfrom gateway.cli.main import main\n\nsys.exit(main())\n' "$(abspath $(BIN))/python" > $(BIN)/gateway && chmod +x $(BIN)/gateway
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.run
	@echo "setting up the tools …"
	@$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

$(VENV)/.bench: requirements-bench.lock $(VENV)/.dev
	@$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements-bench.lock
	@touch $@

$(VENV)/audit: | $(BIN)/python
	@$(BIN)/python -m venv $@ && $@/bin/pip install -q --disable-pip-version-check pip-audit  # the newest: it finds more
