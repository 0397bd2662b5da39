# `make run`: the main job. `make test`: format, lint, types and the tests. `make site`: docs/ as pages in build/site.
# Each makes .venv first.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/ready

.PHONY: run test site clean

# With a Hopper GPU: compile, verify and time every schedule, ranked. Without: compile four, verify them on the CPU.
run: $(READY)
	$(VENV)/bin/python -m tl_attention bench $(ARGS)

test: $(READY)
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m mypy
	$(VENV)/bin/python -m pytest -n auto --dist worksteal $(ARGS)

# A warning is an error: links that lead nowhere too. tests/test_site.py builds it by the same command.
site: $(READY)
	rm -rf build/doctrees build/site
	$(VENV)/bin/python -m sphinx -W --keep-going -n -q -c docs -d build/doctrees . build/site

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV)
