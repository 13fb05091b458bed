# `make demo` and `make test` do all the setting up: they make .venv when it is missing, or older than the files that
# say what belongs in it. The demo installs the package alone, the tests and checks what they need beside it.

PYTHON ?= python3
# Where pip finds torch. Empty: the usual index, whose wheels for Linux bring 4 GB of CUDA libraries along.
TORCH_INDEX ?=
# Options for pytest, such as PYTEST=--random-order.
PYTEST ?=
BIN := .venv/bin
DEMO := demo-output
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test coverage lint format audit clean

demo: .venv/package
	$(BIN)/captioner caption data/examples --quiet
	$(BIN)/captioner caption data/examples --out $(DEMO) --overlays --gallery --existing overwrite --quiet
	@echo "Where it looked for each word: open $(DEMO)/gallery.html, or see the figures in $(DEMO)/overlays/"

# One test process per core, so one thread each: more would only wait for each other.
test: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST)

coverage: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --cov=captioner --cov-report=term:skip-covered $(PYTEST)

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What is installed, against the published advisories. torch.jit.script, which CVE-2025-3000 is about, is never called.
audit: .venv/installed
	$(PIP) 'pip-audit>=2.7'
	$(BIN)/python -m pip_audit --skip-editable --ignore-vuln CVE-2025-3000

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The stamp is written last, so that an interrupted installation is taken up again.
.venv/package: setup.cfg pyproject.toml
	$(if $(and $(CPU),$(if $(TORCH_INDEX),,1)),$(error CPU=1 needs TORCH_INDEX=URL, the index of torch's CPU wheels: \
	choose "CPU" on torch's own installation page and take the URL after --index-url))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "captioner needs Python 3.10 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(if $(TORCH_INDEX),$(PIP) --index-url '$(TORCH_INDEX)' torch torchvision)
	$(PIP) --editable .
	touch $@

.venv/installed: .venv/package
	$(PIP) --editable '.[test,lint]'
	touch $@

clean:
	rm -rf .venv $(DEMO) build *.egg-info .coverage .pytest_cache .mypy_cache .ruff_cache
