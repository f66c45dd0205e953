# Targets (each creates the virtual environment if necessary):
#   make demo    show what would be sent to a model, and a scripted conversation, with the sample catalog
#   make test    run the tests in the virtual environment; what needs a missing program is skipped (see docs/testing.md)
#   make test-all    install what tests need, also system packages, and run all tests, thorough ones too
#   make test-clients    likewise for the tests with browsers, client programs and agent frameworks
#   make test-python    run the tests that depend on the Python version: make test-python PYTHON=python3.13 VENV=.venv-3.13
#   make test-sdks    compare the whole test suites of the openai and anthropic packages with and without the model proxy
#   make site    build the documentation site into site/, and check its links
# Also: make check (lint, types, layers, public API, tool reference, workflows, site, dashboard, wheel), make bench, make clean.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

unexport PYTHONDONTWRITEBYTECODE # compiled files make every start of Python, of which tests have thousands, faster

TOOLS := $(VENV)/test_tools
PYTHON_TESTS := tests/store tests/dashboard tests/files tests/identity tests/proxy/test_tls.py tests/agent tests/mcp/test_oauth.py \
  tests/test_config.py tests/test_dispatch.py tests/test_loops.py tests/test_runtime.py tests/test_session.py

.PHONY: demo test test-all test-clients test-python test-sdks test-tools check site bench clean

demo: $(VENV)/.runtime
	@$(BIN)/toolfold demo

test: $(VENV)/.dev
	@sh scripts/test_servers/small.sh $(TOOLS)
	@sh scripts/run_tests.sh $(BIN)/pytest

test-all: export TOOLFOLD_TEST_ALL = 1
test-clients: export TOOLFOLD_TEST_CLIENTS = 1
test-all test-clients: test-tools
	@sh scripts/run_tests.sh $(BIN)/pytest

test-python: $(VENV)/.dev
	@sh scripts/test_servers/small.sh $(TOOLS)
	@sh scripts/run_tests.sh $(BIN)/pytest $(PYTHON_TESTS)

# Everything that tests can use: packages of the system, if the user is root on Debian, and large tools below $(VENV).
test-tools: $(VENV)/.dev
	@sh scripts/prepare_tests.sh $(TOOLS)

test-sdks: export TOOLFOLD_TEST_ALL = 1
test-sdks: $(VENV)/.dev
	@sh scripts/test_servers/sdk_tests.sh $(TOOLS)/sdk_tests
	@$(BIN)/pytest tests/proxy/test_sdk_suites.py

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/public_api.py
	$(BIN)/python scripts/tools_reference.py
	$(BIN)/python scripts/check_workflows.py
	$(BIN)/python scripts/check_platforms.py
	$(MAKE) --no-print-directory site
	sh scripts/check_ui.sh
	sh scripts/try_wheel.sh $(BIN)/python

site: export NO_MKDOCS_2_WARNING = 1 # a notice of the theme about another program
site: $(VENV)/.dev
	$(BIN)/python -m mkdocs build --quiet --strict

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/assembly.py
	$(BIN)/python benchmarks/retrieval.py --sizes 226,1000

clean:
	rm -rf $(VENV) dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@echo "setting up $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Toolfold needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || sh scripts/make_venv.sh $(PYTHON) $(VENV)

$(VENV)/.runtime: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing packages"
	@$(PIP) install -c constraints.txt -e '.[plot]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing packages for development"
	@$(PIP) install -c constraints.txt -e '.[dev,docs,plot,modal,daytona,web,browser,message,homeassistant]'
	@touch $@ $(VENV)/.runtime
