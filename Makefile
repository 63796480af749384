PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNS := $(VENV)/.runs
AIMOCK := tests/npm/node_modules/.package-lock.json
# Keep what Python has compiled, whatever the environment says: tests start many processes.
export PYTHONDONTWRITEBYTECODE :=
# One more worker than processors: many tests wait for a process or a server.
export PYTEST_XDIST_AUTO_NUM_WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
# The program that tests need and that this Makefile builds.
COLLECTOR ?= .judges/collector
export PATH := $(PATH):$(abspath $(COLLECTOR))
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

.PHONY: demo test test-all test-environment docs docs-serve bench bench-peers bench-memory bench-search picture \
	pictures reference dashboards deploy collector collector-config lint format types clean

demo: $(if $(wildcard $(READY)),,$(RUNS))  ## run the demo agent, and print its trace, audit records and metrics
	@$(BIN)/traced-tools demo

test: test-environment  ## run the tests on all processors, without the slow ones
	$(PYTEST) -m "not slow" $(ARGS)

test-all: test-environment  ## run all tests on all processors
	$(PYTEST) $(ARGS)

test-environment: $(READY) $(if $(shell command -v npm 2>/dev/null),$(AIMOCK))

docs: $(READY)  ## build the documentation site in build/site, and check its links
	$(BIN)/python -m docs.site build

docs-serve: $(READY)  ## build the documentation site and show it on http://127.0.0.1:8000
	$(BIN)/python -m docs.site serve

bench: $(READY)  ## measure the overhead against the bare OpenTelemetry SDK
	$(BIN)/python -m tests.bench $(ARGS)

bench-peers: $(READY)  ## measure the loop and its features beside other frameworks and libraries
	$(BIN)/python -m tests.bench.peers $(ARGS)

bench-memory: $(READY)  ## count the facts that survive compactions of a conversation
	$(BIN)/python -m tests.bench.memory $(ARGS)

bench-search: $(READY)  ## measure how well tool indexes find tools, what they save and how fast they are
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.bench.search $(ARGS)

picture: $(READY)  ## regenerate the README's picture of the demo
	$(BIN)/python docs/picture.py

pictures: $(READY)  ## regenerate the pictures of the dashboards; needs prometheus and promtool
	$(BIN)/python docs/dashboard_pictures.py

reference: $(READY)  ## regenerate the reference pages, the events' schema, the registry of telemetry names, and the picture of the house
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/house.py

dashboards: $(READY)  ## regenerate the dashboards and the rules
	$(BIN)/python -m dashboards

deploy: $(READY)  ## regenerate the manifests that repeat collector configurations, rules and names of boards
	$(BIN)/python deploy/kubernetes/generate.py

collector:  ## build the OpenTelemetry Collector of deploy/collector, which takes minutes, unless it is up to date
	deploy/collector/build $(COLLECTOR)

collector-config: $(READY)  ## write the attribute keys that the collector lets through
	$(BIN)/python deploy/collector/allowed_keys.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)
	$(BIN)/mypy

$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing traced_tools and its development dependencies into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(RUNS): pyproject.toml  # what the package needs to run, and no development tools
	@test -x $(BIN)/python || { echo "creating $(VENV) ..." && $(PYTHON) -m venv $(VENV); }
	@echo "installing traced_tools and what its command line needs into $(VENV) ..."
	@$(BIN)/python -m pip install --disable-pip-version-check --editable '.[cli]'
	@touch $@

$(AIMOCK): tests/npm/package-lock.json  # without it, the tests of its packages are skipped
	-@npm ci --prefix tests/npm --ignore-scripts --no-audit --no-fund --loglevel=error && touch $@

clean:
	rm -rf $(VENV) tests/npm/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
