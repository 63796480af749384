PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test bench picture lint format types clean

demo: $(READY)  ## run the demo agent and show its trace
	@$(BIN)/traced-tools demo

test: $(READY)  ## run the tests
	$(BIN)/python -m pytest $(ARGS)

bench: $(READY)  ## measure, beside the bare OpenTelemetry SDK
	$(BIN)/python -m tests.bench $(ARGS)

picture: $(READY)  ## draw the README's picture anew
	$(BIN)/python docs/picture.py

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
	@echo "installing traced_tools and what its tests need into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
