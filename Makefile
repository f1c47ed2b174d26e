# make setup | demo | test | lint | bench | docs | paper | constraints
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEMO   := $(VENV)/.demo

.PHONY: setup demo test tests lint style types bench docs paper constraints clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,export,report,dev]'
	touch $(STAMP) $(DEMO)

demo: $(DEMO)
	$(BIN)/gibbsprune demo

$(DEMO): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,export]'
	touch $(DEMO)

lint: style types

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# mypy has work for one processor alone: the tests begin beside it.
test: style
	$(MAKE) --no-print-directory --jobs 2 types tests

tests: setup
	$(BIN)/pytest -n 2 --dist worksteal -rs

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

paper: setup
	$(BIN)/python -m paper

bench: setup
	$(BIN)/python benchmarks/sampling.py
	$(BIN)/python benchmarks/step.py

# Newest versions of everything but torch, whose default build brings gigabytes of CUDA: its line is changed by hand.
constraints:
	rm -rf build/constraints && $(PYTHON) -m venv build/constraints
	build/constraints/bin/pip install --quiet "$$(grep '^torch==' constraints.txt)"
	build/constraints/bin/pip install --quiet '.[demo,export,report,sweep,dev]'
	(head -1 constraints.txt; build/constraints/bin/pip freeze --exclude gibbsprune | sed 's/+cpu//') > build/new.txt
	mv build/new.txt constraints.txt

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
