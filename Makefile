# Each target sets up what it needs and is one command. `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Written last, so that an interrupted set-up is done again; newer inputs also set up again.
READY := $(VENV)/.ready
OLDEST := .venv-oldest
XLA := .venv-xla
TOOLS := prometheus prometheus-alertmanager
# Not what is generated for Grafana: no library of this list has a part in it. Nor the callbacks: the
# frameworks that they extend are not installed there.
OLDEST_TESTS := tests/otel_training tests/contract tests/cases tests/e2e/test_otlp.py tests/e2e/test_process_end.py \
  --ignore=tests/otel_training/artifacts --ignore=tests/cases/test_c25_dashboards_as_files.py \
  --ignore=tests/otel_training/integrations/test_lightning.py \
  --ignore=tests/otel_training/integrations/test_transformers.py --ignore-glob='tests/cases/*_callback.py'
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -qq -c constraints-dev.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-oldest test-pictures test-xla pictures lint format docs dashboards bench endurance tools venv clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## train a small GPT for about a minute, with a scrape page (ARGS="--set key=value" passes through)
	@exec $(BIN)/python -m trainer train --config examples/demo.yaml $(ARGS)

test: $(READY) ## run all tests (ARGS="-k name" passes through)
	@$(MAKE) --no-print-directory tools
	@exec $(BIN)/python -m pytest $(ARGS)

test-oldest: $(OLDEST)/.ready ## run the telemetry's tests on the oldest OpenTelemetry and prometheus_client that we support
	@exec $(OLDEST)/bin/python -m pytest $(OLDEST_TESTS) $(ARGS)

lint: $(READY) ## ruff check, ruff format --check, mypy --strict
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

format: $(READY) ## let ruff fix and format what it can
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

test-pictures: $(READY) ## draw the dashboards with Grafana's components in Chromium and look at each panel (Node 20, minutes)
	@$(MAKE) --no-print-directory tools TOOLS='$(TOOLS) chromium npm'
	@exec $(BIN)/python -m pytest tests/grafana $(ARGS)

test-xla: $(XLA)/.ready ## run the tests on the real torch_xla, its CPU runtime (7 GB in .venv-xla)
	@PJRT_DEVICE=CPU exec $(XLA)/bin/python -m pytest --noconftest tests/xla $(ARGS)

docs: $(READY) ## write what is generated in README.md and docs/
	$(BIN)/python docs/readme_tree.py
	$(BIN)/python docs/events_page.py
	$(BIN)/python -m otel_training.options docs/configuration.md
	$(BIN)/python -m otel_training.artifacts.docs_tables docs/metrics.md

dashboards: $(READY) ## write the dashboards and rules in grafana/
	$(BIN)/python -m otel_training.artifacts

pictures: ## write the pictures of the dashboards in docs/images
	@PICTURES=docs/images $(MAKE) --no-print-directory test-pictures

bench: $(READY) ## measure what a step pays for telemetry
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit; done

endurance: $(READY) ## a million steps through everything: memory and cost flat, every counter exact (minutes)
	@exec $(BIN)/python tests/safety/endurance.py $(ARGS)

tools: ## check for the servers of the end-to-end tests; as root on Debian, install them
	@missing=; for tool in $(TOOLS) promtool; do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo 'Installing $(TOOLS) for the end-to-end tests ...'; \
	  apt-get update -q >/dev/null && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $(TOOLS) >/dev/null && exit 0; \
	fi; \
	echo "Not here:$$missing. The tests on the real servers cannot run."; \
	echo 'On Debian or Ubuntu: sudo apt-get install --no-install-recommends $(TOOLS)'; \
	[ "$${CI:-}" != true ]

venv: $(READY) ## set up .venv for development

# A finished .venv is brought up to date in place; one without the stamp was interrupted and is made anew.
$(READY): pyproject.toml constraints-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'The pinned development versions need Python 3.11 or newer; name one: make PYTHON=python3.12 ...'; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo '$(PYTHON) cannot make virtual environments. On Debian or Ubuntu: sudo apt-get install python3-venv'; exit 1; }
	@echo 'Setting up $(VENV): a minute or more the first time, most of it PyTorch ...'
	@[ -e $@ ] || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $@
# PyTorch comes first and alone, so that nothing later can choose another build of it.
	@$(INSTALL) torch
	@$(INSTALL) -e '.[dev]'
	@touch $@

$(OLDEST)/.ready: pyproject.toml constraints-oldest.txt
	@echo 'Setting up $(OLDEST) ...'
	@$(PYTHON) -m venv --clear $(OLDEST)
	@$(OLDEST)/bin/python -m pip install --disable-pip-version-check -qq -c constraints-dev.txt torch
	@$(OLDEST)/bin/python -m pip install --disable-pip-version-check -qq -c constraints-oldest.txt \
	  -e . hypothesis pytest pytest-timeout 'rotel>=0.0.1a15'
	@touch $@

# The newest torch that torch_xla has a release for.
$(XLA)/.ready: pyproject.toml
	@echo 'Setting up $(XLA): 7 GB, several minutes ...'
	@$(PYTHON) -m venv --clear $(XLA)
	@$(XLA)/bin/python -m pip install --disable-pip-version-check -qq torch==2.9.1 torch-xla==2.9.0
	@$(XLA)/bin/python -m pip install --disable-pip-version-check -qq -e . pytest pytest-timeout
	@touch $@

clean: ## remove .venv, caches and the demo's runs
	rm -rf $(VENV) $(OLDEST) $(XLA) build dist runs .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
