# make demo   run Inception-v3 over two CPU clusters
# make test   everything that a change has to pass
#
# Both make their own virtual environment in .venv first. Another Python: make test PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all lint types contracts unit examples format clean

help:
	@echo 'make demo       run Inception-v3 over two CPU clusters'
	@echo 'make test       lint, types, contracts, unit tests and examples'
	@echo 'make test-all   the same and all node tests of the ONNX project'
	@echo 'make format     format the code and sort the imports'
	@echo 'make clean      remove what the other commands made'

# Names are relative, so that the path of the repository may contain spaces.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("coexec needs Python 3.11 or later, $(PYTHON) is %d.%d: make PYTHON=python3.12" % sys.version_info[:2])'
	@echo '== environment: .venv (once)'
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

# The first two cores that this process may use, as two clusters of one core.
demo: $(READY)
	@mkdir -p build
	@devices=$$($(BIN)/python -c 'import os; c = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1); print(",".join(f"cpu:{i}" for i in c[:2]))'); \
	case "$$devices" in \
	  *,*) ;; \
	  *) echo "make demo needs two cores, because it runs parts of one network on both at the same time; this process may use one ($$devices)." >&2; exit 1 ;; \
	esac; \
	set -x; \
	$(BIN)/coexec bench zoo:inception_v3 --devices "$$devices" --planner hope_greedy --gantt --check --trace build/trace.json

test-all: test
	@echo '== all of the ONNX project'"'"'s node tests'
	@$(BIN)/python -m pytest -m conformance

test: lint types contracts unit examples
	@echo '== all passed'

lint: $(READY)
	@echo '== lint'
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet --diff .

types: $(READY)
	@echo '== types'
	@$(BIN)/mypy --no-error-summary

contracts: $(READY)
	@echo '== contracts'
	@$(BIN)/lint-imports --no-logo

unit: $(READY)
	@echo '== unit tests'
	@$(BIN)/python -m pytest -n auto --dist loadfile -m 'not conformance and not alone'
	@$(BIN)/python -m pytest -m alone

examples: $(READY)
	@echo '== examples'
	@$(BIN)/python tests/check_examples.py

format: $(READY)
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

clean:
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
