# Everything there is to do in this repository; `make` alone lists it.
#
#     make test PYTHON=python3.12        another interpreter; it makes .venv, once
#     make test JOBS=8                   more processes

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

# One thread a process: several of them share the cores, and small matrices gain nothing from more.
export OMP_NUM_THREADS := 1
export OMP_WAIT_POLICY := PASSIVE
export TOKENIZERS_PARALLELISM := false
# Nothing here downloads a model: those that the tests need come as packages.
export HF_HUB_OFFLINE := 1

# Three agents at once, on two cores as well: two and then one would leave a core idle.
DEMO_OUT := runs/demo
DEMO := run textworld --game peckingorder \
	--episodes 100 --eval-every 10,25,50,100 --seed 0 1 2 --jobs 3 --out $(DEMO_OUT)
TRAIN_OUT := runs/train_coin

# Whether .venv has an extra: the stamp says where it was installed, and from which pyproject.toml.
stamp = { pwd; cat pyproject.toml; }
has = $(stamp) | cmp -s - $(VENV)/installed-$(1)
# Installs an extra unless it is there already. $(1): extra, $(2): what to call it.
add = $(call has,$(1)) || { echo "Installing $(2) into $(VENV) (a minute or two) ..." >&2; \
	$(PIP) install --editable '.[$(1)]' && $(stamp) >$(VENV)/installed-$(1); }
# Runs the tests of one marker; there may be none yet.
marked = $(BIN)/python -m pytest -m $(1) || { [ $$? -eq 5 ] && echo "There is no test marked $(1) yet."; }

.DEFAULT_GOAL := help
.PHONY: help venv install demo train-demo test check lint types mypy pyright contract format bench bench-gpu clean \
	docs test-slow test-mutants test-vllm test-gpu test-browser test-environments

help: ## Show this list
	@echo "hardwon: an agent runtime that consults a durable library of its own experience at every step"; echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST); echo
	@echo "Each target sets up what it needs, in $(VENV). PYTHON=python3.12 chooses the interpreter."

demo: venv ## Watch an agent learn a text game from its own experience (a minute, after installation)
	@$(call has,dev) || { $(call add,demo,what the demo needs); }
	@$(BIN)/hardwon $(DEMO)
	@echo; echo "\`hardwon\` is in $(BIN): run \`. $(BIN)/activate\` first. To run the demo anew: rm -r $(DEMO_OUT)"

train-demo: venv ## Train a tiny policy to use what it is shown (minutes on one core, after installation; goes on where it was)
	@$(call has,dev) || { { $(call add,demo,what the demo needs); } && { $(call add,train,what training needs); }; }
	@$(BIN)/hardwon train examples/train_coin.yaml --resume run.out=$(TRAIN_OUT)
	@echo; echo "To evaluate it again: $(BIN)/hardwon eval $(TRAIN_OUT). To train anew: rm -r $(TRAIN_OUT)"

test: install ## Lint, types, the import contract, and the default tests
	@$(MAKE) --no-print-directory -j$(JOBS) $(SYNC) check
	$(BIN)/python -m pytest -n $(JOBS)

install: venv ## Make .venv with everything the tests need (nothing to do while pyproject.toml is the same)
	@$(call add,dev,hardwon and what its tests need)
	@$(BIN)/python -c "import bfcl_eval, mpmath" 2>/dev/null || $(PIP) install --no-deps bfcl-eval mpmath

venv:
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		command -v $(PYTHON) >/dev/null || { \
			echo "There is no $(PYTHON) here. Install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }; \
		$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("hardwon needs Python 3.11 or newer; $(PYTHON) is %d.%d. Name another one: make PYTHON=python3.12" % v[:2])' && \
		$(PYTHON) -m venv --clear $(VENV); }

check: lint types contract

lint: install ## Ruff: mistakes, imports, formatting
	@$(BIN)/ruff check && $(BIN)/ruff format --check --quiet || { echo "Most of it is mended by: make format" >&2; exit 1; }

types: mypy pyright ## mypy (strict) and pyright

mypy: install
	@$(BIN)/mypy

pyright: install
	@$(BIN)/pyright

contract: install ## Imports point one way: apps, trainers, runtime, memory
	@$(BIN)/python -c 'import hardwon; from importlinter.cli import lint_imports_command; lint_imports_command()' --no-logo

format: install ## Sort imports, reformat, and mend what can be mended
	@$(BIN)/ruff check --fix --quiet; $(BIN)/ruff format

test-slow: install ## Tests of minutes: the wheel in an empty environment, a planted type error
	@$(call marked,slow)

test-mutants: install ## Change one operator at a time and see whether a test fails (MUTANTS=120 SEED=0; an hour on 2 cores)
	@$(call add,mutants,what makes mutants)
	$(BIN)/python -m pytest -m slow -s tests/test_mutants.py

test-vllm: install ## The loop and the trainer's engines against a real vLLM, on the CPU (sets up .venv-vllm: 5 minutes, 3.5 GB)
	PYTHON=$(PYTHON) bash tests/vllm/setup.sh
	$(BIN)/python -m pytest -m vllm

test-gpu: install ## Tests that need an NVIDIA GPU
	@$(call add,train,what training needs)
	@$(call marked,gpu)

test-browser: install ## The dashboard in headless Chromium (installs Debian's chromium where there is none)
	@$(call add,browser,what drives the browser)
	@command -v chromium >/dev/null || { echo "Installing chromium ..." >&2; \
		apt-get update -q && apt-get install -y --no-install-recommends chromium fonts-dejavu-core; }
	@$(call marked,browser)

test-environments: install ## ALFWorld, ScienceWorld and MiniWoB++ (ALFWorld builds for minutes; MiniWoB++ needs chromium and chromedriver)
	@$(call add,alfworld,ALFWorld); $(call add,scienceworld,ScienceWorld); $(call add,miniwob,MiniWoB++)
	$(BIN)/python -m pytest -m "browser or not browser" tests/runtime/environments

docs: venv ## Build the documentation site into site/; a warning is an error
	@$(call add,docs,what builds the site)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html, or serve it: $(BIN)/mkdocs serve"

bench: install ## Measure learning, recall and the loop; fills in examples/experiments/learning-games.md (an hour on 2 cores)
	$(BIN)/hardwon bench learn --write examples/experiments/learning-games.md
	$(BIN)/hardwon bench recall
	$(BIN)/hardwon bench loop

bench-gpu: install ## Measure generation and training on an NVIDIA GPU; fills in docs/benchmarks.md (minutes)
	@$(call add,train,what training needs)
	$(BIN)/hardwon bench gpu --write docs/benchmarks.md

clean: ## Remove .venv, caches, built files and the demos' runs; other runs stay
	rm -rf $(VENV) site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage build dist $(DEMO_OUT) $(TRAIN_OUT)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
