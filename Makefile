# `make demo` and `make test` do all the set-up: both make .venv when it is missing or older than the files that
# say what belongs into it.

PYTHON ?= python3
BIN := .venv/bin
DEMO := demo-output

.PHONY: demo test lint format clean

demo: .venv/installed
	$(BIN)/captioner caption data/examples --quiet
	$(BIN)/captioner caption data/examples --out $(DEMO) --overlays --gallery --existing overwrite --quiet
	@echo "Where it looked for each word: open $(DEMO)/gallery.html, or see the figures in $(DEMO)/overlays/"

# One test process a core, so one thread each: more would only wait for each other.
test: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The stamp is written last, so an interrupted installation is taken up again.
.venv/installed: setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "captioner needs Python 3.10 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,lint]'
	touch $@

clean:
	rm -rf .venv $(DEMO) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
