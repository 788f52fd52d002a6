# Everything happens in .venv, which is made from constraints.txt when it is missing or older than what it is made from.
PYTHON ?= python3
VENV ?= .venv
# Tests wait for processes and timeouts: four fill two cores.
JOBS ?= 4
RUNS ?= runs

BIN := $(VENV)/bin
SOURCES := pyproject.toml constraints.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

.DEFAULT_GOAL := help
.PHONY: help train test test-exhaustive quick check style types layers format docs clean

help:
	@echo "make train    train CartPole for 100,000 steps, plot its learning curve and record a video (seconds, after the install)"
	@echo "make test     the tests that every change has to pass"
	@echo "make test-exhaustive  those that it leaves out: full products, and what takes minutes"
	@echo "make quick    the fast tests: the inner loop"
	@echo "make check    format, lint, types, import layers, documentation"
	@echo "make format   format the code and sort its imports"
	@echo "make docs     build the documentation into site/"
	@echo "make clean    remove .venv, site/ and caches; runs/ stays"
	@echo "Variables: PYTHON=$(PYTHON) VENV=$(VENV) JOBS=$(JOBS) RUNS=$(RUNS)"

train: $(VENV)/.train
	@set -eu; mkdir -p "$(RUNS)"; n=1; while [ -e "$(RUNS)/cartpole-$$n" ]; do n=$$((n + 1)); done; \
	run="$(RUNS)/cartpole-$$n"; \
	$(BIN)/lockstep train cartpole --out "$(RUNS)" --name "cartpole-$$n"; \
	$(BIN)/lockstep play "$$run" --video; \
	$(BIN)/lockstep plot "$$run"; \
	echo; \
	echo "run    $$run"; \
	echo "curve  $$(ls "$$run"/plots/*.png)"; \
	echo "video  $$(ls "$$run"/videos/*.mp4)"

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(JOBS) -m "not serial and not exhaustive"
	$(BIN)/python -m pytest -m "serial and not exhaustive" $$(grep -rl --include='*.py' mark.serial tests)

test-exhaustive: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(JOBS) -m exhaustive

quick: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n $(JOBS) -m "not slow and not serial and not exhaustive"

check: types style layers docs

style: $(VENV)/.dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check

# On a busy machine, mypy's parallel workers may not find each other; then one process checks.
types: $(VENV)/.dev
	$(BIN)/mypy -n $(JOBS) || $(BIN)/mypy

layers: $(VENV)/.dev
	$(BIN)/lint-imports --no-cache --no-logo

format: $(VENV)/.dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: $(VENV)/.dev
	$(BIN)/zensical build --clean --strict

clean:
	rm -rf $(VENV) site dist build .cache .kernel_cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.train: EXTRAS := video,report
$(VENV)/.dev: EXTRAS := all,dev,docs
# Python compiles modules when they are first imported; compiling all of them takes 25 seconds.
$(VENV)/.dev: OPTIONS := --no-compile

# An interrupted install leaves no stamp, so the next call finishes it. The pip of Python 3.11 needs 20 seconds more than the pinned one.
$(VENV)/.train $(VENV)/.dev: $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("lockstep needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12 ...")'
	@$(BIN)/python -c '' 2> /dev/null || $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing lockstep-rl[$(EXTRAS)] and its pinned packages in $(VENV) (minutes the first time) ..."
	@$(PIP) install -qq $(OPTIONS) -c constraints.txt pip
	@$(PIP) install -qq $(OPTIONS) -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@
