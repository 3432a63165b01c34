# `make scan` and `make test` need Python 3.11 or later, pip and make; the first call makes .venv, later ones reuse it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# onnx-diagnostic lies beside the environment: with it in sight, every search would try its shims, too; and torchao, which
# transformers would import in every process
DIAGNOSTIC := $(VENV)/onnx-diagnostic
TORCHAO := $(VENV)/torchao
# where this is set, every process of the tests would compile the sources and the tests again
export PYTHONDONTWRITEBYTECODE =

# the tests with these marks; on a shared machine what waits for real processes may be late: what fails is run once more, alone, and
# both are seen
define run_tests
	$(BIN)/python -m pytest -n 4 --dist worksteal -m "$(1)" || \
		{ test $$? -eq 1 && $(BIN)/python -m pytest -p no:xdist -m "$(1)" --last-failed --last-failed-no-failures none; }
endef

.PHONY: scan test quick long night lint types contracts docs bench gpu-check clean

scan: $(STAMP)
	@# findings are exit code 1: for make they are a result, not an error
	$(BIN)/exportdoctor scan Qwen2.5-VL-3B $(ARGS) || test $$? -eq 1

test: lint types contracts
	$(call run_tests,not long and not night)

# the scans of the tests that take longest, which CI runs after `make test`
long: $(DIAGNOSTIC)/.installed $(TORCHAO)/.installed
	$(call run_tests,long and not night)
	PYTHONPATH=$(CURDIR)/$(DIAGNOSTIC) $(BIN)/python -m pytest -k onnx_diagnostic tests/shims/test_providers.py tests/export/test_export.py
	PYTHONPATH=$(CURDIR)/$(TORCHAO) $(BIN)/python -m pytest -p no:xdist -k "torchao or pt2e" tests/worker/test_sensitivity.py

quick: $(STAMP)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow and not long and not browser and not night" -x

# longer searches for a violation of what the tests state; hours
night: $(STAMP)
	HYPOTHESIS_PROFILE=default $(BIN)/python -m pytest -n 2 --dist worksteal -m night

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports

# the generated pages; tests compare them with what is committed
docs: $(STAMP)
	$(BIN)/python tools/write_shims.py > docs/shims.md.new && mv docs/shims.md.new docs/shims.md
	$(BIN)/python tools/write_failures.py
	PYTHONPATH=src:tests/support $(BIN)/python tools/write_scenarios.py
	PYTHONPATH=src $(BIN)/python tools/write_notebook.py
	PYTHONPATH=src:tui:tests/support $(BIN)/python tools/draw_tui.py

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

gpu-check:
	$(PYTHON) benchmarks/gpu_check.py

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

$(DIAGNOSTIC)/.installed: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --upgrade \
		--target $(DIAGNOSTIC) onnx-diagnostic scipy optree
	touch $@

$(TORCHAO)/.installed: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --upgrade \
		--target $(TORCHAO) torchao
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
