# Each target does everything that it needs from a bare clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
QUICK := tests/test_architecture.py $(addprefix tests/library/test_, gradients.py statuses.py rules.py bounds.py)

.PHONY: run run-full test quick lint bench gate field docs soak sweep mutants mutants-today package clean

run: $(READY)
	$(BIN)/python -m experiments all

# Longer training and more sizes, where that says more: hours. What is finished is kept.
run-full: $(READY)
	$(BIN)/python -m experiments all --full

test: $(READY)
	$(BIN)/python -m pytest

# For the inner loop: one file of every kind, in less than a minute.
quick: $(READY)
	$(BIN)/python -m pytest -o addopts="" -n 2 --dist worksteal -q $(QUICK)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(READY) $(VENV)/.peers
	$(BIN)/python -m experiments bench

# Whether speed was lost since it was last kept, in a dozen ratios; on purpose: bench --accept "reason".
gate: $(READY)
	$(BIN)/python -m experiments bench --gate

# Every library of optimisation layers on the same problems: at most two hours, and continued where it was.
field: $(READY) $(VENV)/.field
	$(BIN)/python -m experiments field

docs: $(READY) $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python docs/look.py site
	@echo "written to site/index.html"

sweep: $(READY)
	$(BIN)/python -m tests.sweep --minutes 10

mutants: $(READY)
	$(BIN)/python -m tests.mutants

# A thirtieth of them, another one every day.
mutants-today: $(READY)
	$(BIN)/python -m tests.mutants --share 30

soak: $(READY)
	$(BIN)/python -m pytest -o addopts="" -q tests/soak.py

# What would be released: built, looked into, installed and tried.
package: $(READY)
	$(BIN)/python -m tests.package

# Installed again only when what is to be installed has changed.
$(READY): pyproject.toml setup.py constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[experiments,reference,dev]"
	touch $@

# Peers of the benchmark. qpth works with the present numpy, but its metadata refuses it.
$(VENV)/.peers: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[peers]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps qpth
	touch $@

# libdqp asks for commercial solvers that it does not need.
$(VENV)/.field: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[field]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps qpth libdqp
	touch $@

$(VENV)/.docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) build site *.egg-info .pytest_cache .mypy_cache .ruff_cache
