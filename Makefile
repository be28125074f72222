# `make train` and `make test` need Python 3.11 to 3.13 and nothing else.
# CPU-only machines: PIP_ARGS may name PyTorch's CPU wheel index, see PyTorch's install page.
PYTHON ?= python3
PIP_ARGS ?=
EXTRAS ?= dev,oracle
BIN := .venv/bin
# One more than cores, since tests wait for processes that they start.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
MAKEFLAGS += --jobs=2  # the linters run beside the tests

.PHONY: train test test-all run-tests golden shipped lint results clean

train: .venv/.done
	$(BIN)/python scripts/train.py pe=sinusoidal

# `test-all` adds what takes minutes: kills, wheels, a browser, whole commands.
test: MARKED = -m "not slow"
test test-all: lint run-tests

run-tests: .venv/.tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=10 $(MARKED)

# The numbers that tests/golden holds the package to, after NUMERICS was raised.
golden: .venv/.tests
	$(BIN)/python -m tests.golden.numbers

# What a new encoding or task needs besides its class, YAML, loop and catalogue line: golden numbers, test
# vectors, cards. Each line says what was written.
shipped: .venv/.tests
	$(BIN)/python -m tests.golden.numbers missing
	$(BIN)/python -m tests.oracles.vectors
	$(BIN)/python scripts/catalogue.py

# Every table, figure and page under results/ from the CSVs of the studies.
results: .venv/.tests
	$(BIN)/python scripts/results.py

lint: .venv/.tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What a run needs. pip says what it downloads: PyTorch is large, and its unpacking takes a while.
.venv/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt -e .
	touch $@

# And what the tests need besides.
.venv/.tests: .venv/.done
	$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt -e ".[$(EXTRAS)]"
	touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
