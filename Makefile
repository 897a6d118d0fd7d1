# The tasks of this repository. Run `make` without arguments to list them.
#
#     make test PYTHON=python3.12        use another interpreter; only applies while there is no .venv
#     make test JOBS=8                   run more processes

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

# One thread per process: the test processes share the cores, and small matrices do not profit from more threads.
export OMP_NUM_THREADS := 1
export OMP_WAIT_POLICY := PASSIVE
export TOKENIZERS_PARALLELISM := false
# Compile modules and tests once, and not in every process and every run.
unexport PYTHONDONTWRITEBYTECODE
# Fail instead of downloading a model: the models that the tests need are installed as packages.
export HF_HUB_OFFLINE := 1

DEMO_OUT := runs/demo
TRAIN_OUT := runs/train_coin

# uv resolves them together; pip tries for a long time.
FRAMEWORKS := openai-agents pydantic-ai smolagents llama-index-core google-adk crewai

# Test whether .venv has an extra. The stamp records the folder and the pyproject.toml of the installation, because
# a moved checkout or changed dependencies need a new one.
stamp = { pwd; cat pyproject.toml; }
has = $(stamp) | cmp -s - $(VENV)/installed-$(1)
# Install an extra unless it is installed. $(1): the extra; $(2): its name in the message.
add = $(call has,$(1)) || { echo "Installing $(2) into $(VENV) (a minute or two) ..." >&2; \
	$(PIP) install --editable '.[$(1)]' && $(stamp) >$(VENV)/installed-$(1); }
# Run the tests with one marker. pytest exits with 5 if it selects none, which is no error here.
marked = $(BIN)/python -m pytest -m $(1) || { [ $$? -eq 5 ] && echo "No tests are marked $(1)."; }

.DEFAULT_GOAL := help
.PHONY: help venv install demo train-demo test check lint types mypy pyright contract format bench bench-gpu clean \
	docs smollm2 test-slow test-pretrained test-pretrained-slow test-mutants test-vllm test-frameworks test-gpu test-browser \
	test-environments test-fleet

help: ## List the targets
	@echo "hardwon: an agent runtime that consults a durable library of its own experience at every step"; echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST); echo
	@echo "Each target installs its dependencies into $(VENV). Choose the interpreter with PYTHON=python3.12."

demo: venv ## Watch an agent stop repeating a mistake, and another one learn a game (2 minutes after installation)
	@$(call has,dev) || { $(call add,demo,the demo's dependencies); }
	@$(BIN)/python -m examples.demo $(DEMO_OUT)

train-demo: venv ## Train a tiny policy to use recalled experience (minutes on one core; resumes if interrupted)
	@$(call has,dev) || { { $(call add,demo,the demo's dependencies); } && { $(call add,train,the training dependencies); }; }
	@$(BIN)/hardwon train examples/train_coin.yaml --resume run.out=$(TRAIN_OUT)
	@echo; echo "To evaluate it again: $(BIN)/hardwon eval $(TRAIN_OUT). To train from scratch: rm -r $(TRAIN_OUT)"

test: install ## Run the linters, the type checkers, the import contracts and the default tests
	@$(MAKE) --no-print-directory -j$(JOBS) $(SYNC) check
	$(BIN)/python -m pytest -n $(JOBS)

install: venv ## Create .venv with all test dependencies (does nothing if pyproject.toml is unchanged)
	@$(call add,dev,hardwon and its test dependencies)
	@$(BIN)/python -c "import bfcl_eval, mpmath" 2>/dev/null || $(PIP) install --no-deps bfcl-eval mpmath

venv:
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		command -v $(PYTHON) >/dev/null || { \
			echo "$(PYTHON) was not found. Install Python 3.11 or newer, or pass its path: make PYTHON=/path/to/python3.11" >&2; exit 1; }; \
		$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("hardwon needs Python 3.11 or newer; $(PYTHON) is %d.%d. Choose another one: make PYTHON=python3.12" % v[:2])' && \
		$(PYTHON) -m venv --clear $(VENV); }

check: lint types contract

lint: install ## Check code style, imports and formatting with Ruff
	@$(BIN)/ruff check && $(BIN)/ruff format --check --quiet || { echo "Fix most of these with: make format" >&2; exit 1; }

types: mypy pyright ## Check types with mypy (strict) and pyright

mypy: install
	@$(BIN)/mypy

pyright: install
	@$(BIN)/pyright

contract: install ## Check that imports follow the layers: apps, trainers, runtime, memory
	@$(BIN)/lint-imports --no-logo

format: install ## Sort imports, reformat, and apply Ruff's automatic fixes
	@$(BIN)/ruff check --fix --quiet; $(BIN)/ruff format

test-slow: install ## Run the slow tests: the wheel in an empty environment, a planted type error
	@$(call marked,'slow and not pretrained')

test-mutants: install ## Run mutation tests: change one operator at a time and expect a failing test (MUTANTS=120 SEED=0; 2 hours on 2 cores)
	@$(call add,mutants,the mutation testing tools)
	$(BIN)/python -m pytest -m slow -s tests/test_mutants.py

smollm2: venv ## Write the pretrained model SmolLM2-135M-Instruct to models/smollm2, once (a download of 93 MB, a folder of 540 MB)
	@$(call has,dev) || { $(call add,train,the training dependencies); }
	@$(BIN)/hardwon model smollm2 models/smollm2

test-pretrained: install smollm2 ## Test what needs a pretrained model (writes models/smollm2 if it is missing; 4 minutes on one core)
	$(BIN)/python -m pytest -m "pretrained and not slow"

test-pretrained-slow: install smollm2 ## Train each deciding role of the pretrained model until held-out P(right) is 0.95, three seeds (an hour on one core)
	$(BIN)/python -m pytest -s -m "pretrained and slow"

test-vllm: install ## Test the loop, the engines and the pretrained example against a real vLLM on the CPU (creates .venv-vllm: 5 minutes, 3.5 GB)
	PYTHON=$(PYTHON) bash tests/vllm/setup.sh
	$(BIN)/python -m pytest -m vllm

test-frameworks: venv ## Run the examples of docs/frameworks.md on all six frameworks (creates .venv-frameworks: 2 minutes, 1.5 GB)
	@test -x .venv-frameworks/bin/pytest || { $(BIN)/python -m venv .venv-frameworks && \
		.venv-frameworks/bin/pip install --quiet uv && .venv-frameworks/bin/uv pip install --quiet \
		--python .venv-frameworks/bin/python --editable . $(FRAMEWORKS) hypothesis pytest pytest-timeout; }
	.venv-frameworks/bin/python -m pytest tests/runtime/integrations/test_frameworks.py

test-gpu: install ## Run the tests that need an NVIDIA GPU
	@$(call add,train,the training dependencies)
	@$(call marked,gpu)

test-browser: install ## Test the dashboard in headless Chromium (installs Debian's chromium if it is missing)
	@$(call add,browser,the browser driver)
	@command -v chromium >/dev/null || { echo "Installing chromium ..." >&2; \
		apt-get update -q && apt-get install -y --no-install-recommends chromium fonts-dejavu-core; }
	@$(call marked,browser)

test-fleet: install ## Test shared libraries and rollout workers on a private PostgreSQL server and Ray (installs Debian's postgresql if missing; minutes)
	@$(call add,postgres,the PostgreSQL client); $(call add,ray,Ray)
	@command -v postgres >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { \
		echo "Installing postgresql ..." >&2; \
		apt-get update -q && apt-get install -y --no-install-recommends postgresql; }
	$(BIN)/python -m pytest -m "slow or not slow" --timeout 1200 tests/memory/fleet tests/apps/cli/test_shared_library.py tests/apps/shared/test_addresses.py tests/apps/http/test_backends.py tests/runtime/integrations/stores tests/trainers/workers

test-environments: install ## Test ALFWorld, ScienceWorld and MiniWoB++, and an iteration of training in each (ALFWorld builds for minutes; MiniWoB++ needs chromium and chromedriver)
	@$(call add,alfworld,ALFWorld); $(call add,scienceworld,ScienceWorld); $(call add,miniwob,MiniWoB++)
	$(BIN)/python -m pytest -m "browser or not browser" tests/runtime/environments

docs: venv ## Build the documentation site into site/; warnings are errors
	@$(call add,docs,the documentation tools)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html, or serve it: $(BIN)/mkdocs serve"

bench: install ## Benchmark learning, recall and the loop; updates examples/experiments/learning-games.md (1 hour on 2 cores)
	$(BIN)/hardwon bench learn --write examples/experiments/learning-games.md
	$(BIN)/hardwon bench recall
	$(BIN)/hardwon bench loop

bench-gpu: install ## Benchmark generation and training on an NVIDIA GPU; updates docs/benchmarks.md (minutes)
	@$(call add,train,the training dependencies)
	$(BIN)/hardwon bench gpu --write docs/benchmarks.md

clean: ## Remove .venv, caches, build outputs and the demo runs; other runs are kept
	rm -rf $(VENV) site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage build dist $(DEMO_OUT) $(TRAIN_OUT)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
