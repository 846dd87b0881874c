# Everything lives in .venv; nothing is installed on the system. PYTHON picks the interpreter (3.11 or newer),
# JOBS how many compilers run at once and TESTERS how many test processes (tests wait for processes and disks, so there are
# three times as many as cores), ARGS adds arguments to the command that a target runs.

PYTHON ?= python3
JOBS ?= $(shell nproc)
TESTERS ?= $(shell echo $$((3 * $$(nproc))))
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
CHECKS := lint-format lint-types lint-layers lint-style lint-pages
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: help setup build run debug sanitize test test-all bare lint $(CHECKS) bench docs dist wheels release clean

help:
	@echo "make run       build, and start a broker on config/server.properties (ARGS='--override key=value')"
	@echo "make test      build, and run the tests (ARGS='-k produce')"
	@echo "make test-all  the same with the slow ones"
	@echo "make bare      README's commands in a fresh Debian 12 and 13, for root (ARGS='--releases trixie --steps run')"
	@echo "make lint      format, style, layers, generated documents"
	@echo "make bench     saturate a broker and print what it does"
	@echo "make docs      write the generated documents"
	@echo "make dist      wheel and sdist in dist/, for this machine"
	@echo "make wheels    wheels in dist/ for machines without a compiler (ARGS='--versions 3.12 --machines x86_64')"
	@echo "make release   sdist, wheels and their checks, for an index"
	@echo "make debug     build with bounds checks, assertions and line tracing"
	@echo "make sanitize  build with the address and undefined-behaviour sanitizers, and run the tests of the code under them"
	@echo "make setup     the environment with everything for development"
	@echo "make clean     remove what was built; the environment and data stay"

# -- environments: what a broker needs, and what development needs beside it

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; try make PYTHON=...")'
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml setup.py | $(BIN)/python
	@echo "installing what the broker needs into $(VENV)"
	@$(PIP) 'setuptools>=70' wheel 'cython>=3.0.11'
	@KBROKER_SKIP_EXTENSIONS=1 $(PIP) --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml setup.py | $(BIN)/python
	$(PIP) 'setuptools>=70' wheel 'cython>=3.0.11'
	extras=; [ -n "$$JAVA_HOME" ] || command -v java > /dev/null || extras=,java; \
	KBROKER_SKIP_EXTENSIONS=1 $(PIP) --no-build-isolation --editable ".[dev$$extras]"
	@touch $@ $(VENV)/.run

setup: $(VENV)/.dev

# -- build and run: extensions are compiled in place, only what changed

build: $(VENV)/.run
	@KBROKER_BUILD_JOBS=$(JOBS) $(BIN)/python setup.py --quiet build_ext --inplace --parallel $(JOBS)
	@$(BIN)/python tools/check_extensions.py

debug: $(VENV)/.run
	KBROKER_DEBUG=1 KBROKER_BUILD_JOBS=$(JOBS) $(BIN)/python setup.py --quiet build_ext --inplace --parallel $(JOBS)

# Findings go to build/sanitizer.*, the verdict is the last line. The next `make build` (or test, or run) puts the ordinary
# extensions back.
sanitize: $(VENV)/.dev
	KBROKER_SANITIZE=1 KBROKER_BUILD_JOBS=$(JOBS) $(BIN)/python setup.py --quiet build_ext --inplace --parallel $(JOBS)
	$(BIN)/python tests/support/running/sanitizer.py build/sanitizer \
	$(BIN)/python -m pytest -n $(TESTERS) --dist loadfile -m "not slow" $(or $(ARGS),tests/unit tests/property tests/wire tests/integration)

run: build
	exec $(BIN)/kbroker-supervisor -c config/server.properties $(ARGS)

# -- checks

# The brokers and commands that tests start are compiled once, and so are the tests in each test process: also where
# Python is told to write no .pyc of its own.
COMPILED := @$(BIN)/python -m compileall -q kbroker
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(TESTERS) --dist loadfile

test: $(VENV)/.dev build
	$(COMPILED)
	$(PYTEST) -m "not slow" $(ARGS)

test-all: $(VENV)/.dev build
	$(COMPILED)
	$(PYTEST) $(ARGS)

bare:
	$(PYTHON) tools/bare.py $(ARGS)

# The checks run beside each other.
lint: $(VENV)/.dev build
	@$(MAKE) --no-print-directory --output-sync --jobs $(JOBS) $(CHECKS)

lint-format:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-types:
	$(BIN)/mypy

lint-layers:
	$(BIN)/lint-imports --no-logo

lint-style:
	$(BIN)/python tools/check_style.py

lint-pages:
	$(BIN)/python tools/gen_docs.py --check

bench: $(VENV)/.dev build
	$(BIN)/python perf/saturate.py $(ARGS)

# -- products

docs: $(VENV)/.run
	$(BIN)/python tools/gen_docs.py

dist: $(VENV)/.run
	$(PIP) 'build>=1.2'
	rm -rf dist
	KBROKER_BUILD_JOBS=$(JOBS) $(BIN)/python -m build --outdir dist $(ARGS)

# Zig's compiler builds them, for either machine.
$(VENV)/.wheels: pyproject.toml $(VENV)/.run
	$(PIP) 'ziglang>=0.14' 'auditwheel>=6.1'
	@touch $@

wheels: $(VENV)/.wheels
	KBROKER_BUILD_JOBS=$(JOBS) $(BIN)/python tools/wheels.py $(ARGS)

release: $(VENV)/.wheels
	KBROKER_BUILD_JOBS=$(JOBS) $(BIN)/python tools/release.py $(ARGS)

clean:
	rm -rf build dist .hypothesis .ruff_cache *.egg-info
	find kbroker ext perf -name '*.so' -delete -o -name '*.c' -path 'ext/*' -delete
	find kbroker tests perf tools -name __pycache__ -type d -prune -exec rm -rf {} +
