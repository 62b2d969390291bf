PYTHON ?= python3
BIN := .venv/bin
export NO_MKDOCS_2_WARNING := 1
export DISABLE_MKDOCS_2_WARNING := true

.PHONY: serve build test bench figures screenshot new exercise check clean

# One stamp for the site's dependencies, one for what only tests need (PyTorch is large).
.venv/site.stamp: pyproject.toml constraints.txt package.json package-lock.json
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --ignore-scripts
	touch $@

.venv/test.stamp: .venv/site.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

serve: .venv/site.stamp
	$(BIN)/mkdocs serve --dirty --no-strict

build: .venv/site.stamp
	$(BIN)/mkdocs build --strict

# The tensors of the tests are small: threads would only wait for one another, most of all beside other processes.
test: export OMP_NUM_THREADS := 1
test: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest

bench: .venv/test.stamp
	$(BIN)/python -m tests.bench

figures: .venv/test.stamp
	$(BIN)/python -m kb figures

screenshot: build .venv/test.stamp
	$(BIN)/python -m tests.screenshot

new: .venv/site.stamp
	$(BIN)/python -m kb new $(id)

exercise: .venv/site.stamp
	$(BIN)/python -m kb exercise $(id)

# The tests need PyTorch where the answer does.
check: .venv/test.stamp
	$(BIN)/python -m kb check-exercise $(id)

clean:
	rm -rf site .cache
