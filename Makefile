# Works from a bare checkout; needs make and Python 3.11 or later with its venv module.
#
#   make run        simulate the example scenario            make test      what CI runs
#   make lint       style, types and layers only             make test-all  with slow tests and benchmarks
#   make bench      speed measurements                       make clean     remove everything generated

PYTHON   ?= python3
VENV     ?= .venv
JOBS     ?= 2
SCENARIO ?= scenarios/examples/mixtral-8x7b-64xh100.yaml

BIN  := $(VENV)/bin
# The environment is renewed when pyproject.toml is newer than the stamp, and at no other time.
USER := $(VENV)/.stamp-user
DEV  := $(VENV)/.stamp-dev
PIP  := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help run test test-all lint bench check-trace clean

help:
	@sed -n '3,5s/^# //p' Makefile

run: $(USER)
	$(BIN)/simmoe simulate $(SCENARIO)

test: lint
	$(BIN)/pytest -n $(JOBS)

test-all: lint
	$(BIN)/pytest -n $(JOBS) -m "not benchmark"
	$(MAKE) --no-print-directory bench

lint: $(DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# One process: speeds measured beside another worker mean nothing. 5 is pytest's "no tests collected".
bench: $(DEV)
	$(BIN)/pytest -m benchmark || [ $$? -eq 5 ]

# Compares our metrics with HolisticTraceAnalysis, in an environment of its own (500 MB from the package index).
check-trace: $(USER)
	$(BIN)/python tools/check_trace_with_hta.py $(SCENARIO)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache \
	    .hypothesis .benchmarks
	find simmoe tests -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------- environment

define need_python
@command -v $(PYTHON) >/dev/null || { \
    echo "make: $(PYTHON) not found; install Python 3.11 or later, or say 'make PYTHON=/path/to/python3'" >&2; \
    exit 1; }
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
    echo "make: SimMoE needs Python 3.11 or later ($$($(PYTHON) --version) found);" \
         "say 'make PYTHON=/path/to/python3.11'" >&2; exit 1; }
@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
    echo "make: $(PYTHON) has no venv module; on Debian or Ubuntu: apt-get install python3-venv" >&2; \
    exit 1; }
endef

$(USER): pyproject.toml
	$(need_python)
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

# The developer's environment contains the user's.
$(DEV): pyproject.toml
	$(need_python)
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	@touch $(USER) $@
