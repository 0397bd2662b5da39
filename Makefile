# `make run`: the main job. `make test`: format, lint, types and the tests, `make test-all` with those that take long.
# `make golden`: the generated code that tests read. `make site`: docs/ as pages in build/site.
# `make wheel`: a wheel in dist/ with compiled kernels. Each makes .venv first.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/ready
OLDEST := $(VENV)/oldest

.PHONY: run test test-all golden wheel site clean

# With a Hopper GPU: compile, verify and time every schedule, ranked. Without: compile four, verify them on the CPU.
run: $(READY)
	$(VENV)/bin/python -m tl_attention bench $(ARGS)

test: $(READY)
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m mypy
	$(VENV)/bin/python -m pytest -n auto --dist worksteal $(ARGS)

# What `make test` leaves out as it takes long: every kernel lowered and through nvcc, mutants, pictures, site, browser.
# And models once more with the oldest Transformers that pyproject.toml takes.
test-all: test $(OLDEST)/ready
	$(VENV)/bin/python -m pytest -n auto --dist worksteal --exhaustive -m exhaustive --durations 30 $(ARGS)
	$(OLDEST)/bin/python -m pytest -n auto --dist worksteal -m transformers $(ARGS)

# Lower again what the tests read of TileLang and is stale, and say what changed.
golden: $(READY)
	$(VENV)/bin/python tests/golden.py $(ARGS)

wheel: $(READY)
	$(VENV)/bin/python tools/wheel.py $(ARGS)

# A warning is an error: links that lead nowhere too. tests/lab/test_site.py builds it by the same command.
site: $(READY)
	rm -rf build/doctrees build/site
	$(VENV)/bin/python -m sphinx -W --keep-going -n -q -c docs -d build/doctrees . build/site

$(READY): pyproject.toml constraints.txt $(wildcard tl_attention/launch/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@

# All but Transformers, and what it needs in other versions, comes from .venv.
$(OLDEST)/ready: $(READY)
	$(PYTHON) -m venv --clear $(OLDEST)
	cd $(OLDEST)/lib/python*/site-packages && (cd $(CURDIR)/$(VENV)/lib/python*/site-packages && pwd) > venv.pth
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check \
		"$$(sed -n 's/^transformers = \["\(transformers\)>=\([0-9.]*\),.*/\1==\2/p' pyproject.toml)"
	touch $@

clean:
	rm -rf $(VENV)
