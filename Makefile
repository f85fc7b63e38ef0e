# make demo       race PNASNet, operators in parallel on two cores, with ONNX Runtime
# make test       everything that a change has to pass
# make test-all   that, and a tenth of what takes long; another tenth for each commit
# make campaign   all of what takes long
#
# All make their own virtual environment in .venv first. Another Python: make test PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
ABLE := .venv/.able
PARALLEL := $(BIN)/python -m pytest -n auto --dist worksteal
ALONE := $(BIN)/python -m pytest $(shell grep -rl --include='test_*.py' 'mark\.alone' tests)
SHORT := not long and not conformance

# What takes long runs in tenths, and the tests of cpp with one width of blocks: SEED selects them,
# by default the time of the commit. `make test-all SEED=7` runs the same tests on any commit.
SEED ?= $(shell git log -1 --format=%ct 2>/dev/null || date +%s)
WIDTHS := 4 8 16
test-all: PART := --part $(SEED)/10 --hypothesis-seed $(SEED)
test-all: WIDTHS := $(word $(shell expr $(SEED) % 3 + 1),$(WIDTHS))

# Tests start some hundred Python processes, which read the modules that the first one compiled.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all campaign lint types contracts unit examples long blocks older-cpu vectors twin sanitize size format clean

help:
	@echo 'make demo       race PNASNet, operators in parallel on two cores, with ONNX Runtime'
	@echo 'make test       lint, types, contracts, unit tests and examples'
	@echo 'make test-all   the same, the loop in Python, sanitizers, and a tenth of the campaign,'
	@echo '                another one for each commit: SEED=7 selects it'
	@echo 'make campaign   all node tests of the ONNX project, five times as many examples of every'
	@echo '                property, three widths of blocks, NEON, a processor without AVX-512; hours'
	@echo 'make format     format the code and sort the imports'
	@echo 'make size       lines by room, now and at the last release or AGAINST=COMMIT'
	@echo 'make clean      remove what the other commands made'

# Names are relative, so that the path of the repository may contain spaces.
INSTALL = \
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("coexec needs Python 3.11 or later, $(PYTHON) is %d.%d: make PYTHON=python3.12" % sys.version_info[:2])' && \
	echo '== environment: .venv (once), coexec[$(1)]' && \
	$(PYTHON) -m venv .venv && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --progress-bar on \
	  -c constraints.txt -e '.[$(1)]'

# An execution provider as a plug-in, for tests. It lies apart, where only they find it, and without
# the packages that it names: it works with later versions of ONNX Runtime, too.
PLUG_IN = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	  --target .venv/plug-ins onnxruntime-ggml==0.2.0 || \
	  echo 'onnxruntime-ggml could not be installed: the tests of plug-ins will skip' >&2

$(READY): pyproject.toml constraints.txt $(wildcard native/*)
	@$(call INSTALL,dev)
	@$(PLUG_IN)
	@touch $(READY) $(ABLE)

# What runs needs much less than what tests.
FOR_DEMO := cpu
$(ABLE): pyproject.toml constraints.txt $(wildcard native/*)
	@$(call INSTALL,$(FOR_DEMO))
	@touch $(ABLE)

# On the first two cores that this process may use; hardware threads of one core would share its
# vector units.
demo: $(ABLE)
	@devices=$$($(BIN)/python -c 'from coexec.engines.detect import usable_cores; print(*(f"cpu:{core}" for core in usable_cores()[:2]), sep=",")'); \
	case "$$devices" in \
	  *,*) set -x; $(BIN)/coexec bench zoo:pnasnet_mobile --devices "$$devices" --planner hope_greedy --repeats 10 --check --gantt ;; \
	  *) echo "make demo needs two cores, because it runs operators of one network on both at the same time; this process may use one ($$devices). On one core, try coexec optimize MODEL." ;; \
	esac

test-all: test twin sanitize long blocks older-cpu vectors
	@echo '== all passed, and a tenth of what takes long: SEED=$(SEED)'

campaign: long blocks older-cpu vectors
	@echo '== the campaign passed'

# Node tests of the ONNX project, and five times as many examples.
long: $(READY)
	@echo '== long tests $(PART)'
	@$(PARALLEL) --examples 5 --ignore $(VECTORS) -m '(long or conformance or hypothesis) and not alone' $(PART)
	@$(ALONE) -m 'long and alone' $(PART)

# Rooms that depend on the width of blocks of channels of the engine cpp. `make test` runs them with the
# width of this processor's vectors.
BLOCKS := tests/engines/kernels tests/engines/test_operators.py tests/runtime/test_split_plans.py \
	tests/runtime/test_launching.py tests/runtime/test_task_check.py

blocks: $(READY)
	@for width in $(WIDTHS); do \
	  echo "== cpp with blocks of $$width channels"; \
	  $(PARALLEL) --block $$width $(BLOCKS) || exit 1; \
	done

# ONNX Runtime chooses its kernels by what the processor says of itself. Here QEMU is an Intel Haswell,
# with AVX2 and without AVX-512 and VNNI, on any machine; it takes ten to twenty times as long.
HASWELL := qemu-x86_64 -cpu Haswell-noTSX,-tsc-deadline,-invpcid,-pcid,-x2apic
OLDER := tests/engines/onnxruntime tests/session/test_processors.py

older-cpu: $(READY)
	@echo '== a processor without AVX-512'
	@if [ "$$(uname -m)" != x86_64 ]; then \
	  echo 'skipped: this machine is no x86-64'; \
	elif ! command -v qemu-x86_64 >/dev/null; then \
	  echo 'skipped: there is no qemu-x86_64; the Debian package qemu-user brings it'; \
	else \
	  $(HASWELL) $(BIN)/python -m pytest --emulator '$(HASWELL)' $(PART) $(OLDER); \
	fi

# Kernels in C++ for vectors that this processor does not have, or not as its widest ones: NEON under
# QEMU, AVX2 and SSE.
VECTORS := tests/engines/cpp/test_instruction_sets.py

vectors: $(READY)
	@echo '== kernels in C++ for NEON, AVX2 and SSE'
	@$(PARALLEL) -m '' $(VECTORS)

# What runs plans, with the loop in Python as where there is no compiler.
TWIN := tests/runtime tests/engines/test_devices.py tests/session/test_binding.py \
	tests/session/test_run_options.py

twin: $(READY)
	@echo '== plans in the loop in Python'
	@COEXEC_LOOP=twin $(PARALLEL) -m '$(SHORT)' $(TWIN)

# Lines by room: of the last commit, and of the last release or AGAINST=COMMIT.
size: $(READY)
	@$(BIN)/python benchmarks/size.py $(if $(AGAINST),--against $(AGAINST))

# The loop and teams in C++, without Python.
sanitize:
	@echo '== the run loop and teams under ThreadSanitizer and AddressSanitizer'
	@mkdir -p build
	@if ! command -v c++ >/dev/null; then \
	  echo 'skipped: there is no C++ compiler'; \
	else \
	  for kinds in thread address,undefined; do \
	    c++ -std=c++17 -Wall -Wextra -Werror -g -O1 -pthread -fsanitize=$$kinds -fno-sanitize-recover=all \
	      native/stress.cpp -o build/stress && build/stress || exit 1; \
	  done; \
	fi

# What uses one core runs side by side, and then what uses all cores or compares times.
test: $(READY)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync types contracts lint examples
	@$(MAKE) --no-print-directory unit
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
	@$(PARALLEL) -m '$(SHORT) and not alone'
	@$(ALONE) -m '$(SHORT) and alone'

examples: $(READY)
	@echo '== examples'
	@$(BIN)/python tests/check_examples.py

format: $(READY)
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

clean:
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
