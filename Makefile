# Two commands do everything: `make demo` and `make test`. Both install what is missing.
PYTHON ?= python3
VENV := .venv
WORKERS ?= 3
BIN := $(VENV)/bin
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
RABBITMQ := $(or $(wildcard /usr/lib/rabbitmq/bin/rabbitmq-server),$(shell command -v rabbitmq-server))
CHROMIUM := $(firstword $(foreach name,chromium-headless-shell chromium chromium-browser google-chrome,$(shell command -v $(name))))
# A Debian 13 with RabbitMQ 4, made once with debootstrap (0.5 GB).
RABBITMQ4_ROOT ?= $(HOME)/.cache/fedfa/rabbitmq4
BENCH_LOG ?= $(HOME)/.cache/fedfa/bench-log

.PHONY: help setup compiler rabbitmq chromium demo test test-fast test-rabbit4 soak chaos bench-setup bench bench-long check chart \
	images images-test docs docs-serve format clean

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

setup: $(VENV)/.installed rabbitmq chromium  ## virtual environment, RabbitMQ, and a browser for the tests

$(VENV)/.installed: pyproject.toml constraints.txt hatch_build.py shared/fedfa/kernel.c | compiler
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# For the merge kernel. Without a compiler an installation merges with numpy; the tests want both.
compiler:
ifeq ($(shell command -v cc),)
	$(SUDO) apt-get update -q
	$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends gcc libc6-dev
endif

rabbitmq:
ifeq ($(RABBITMQ),)
	$(SUDO) apt-get update -q
	$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends rabbitmq-server
endif

# For the tests of the dashboard. Ubuntu has no such package; there playwright brings its own.
chromium: | $(VENV)/.installed
ifeq ($(CHROMIUM),)
	$(SUDO) apt-get update -q
	$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium-headless-shell \
		|| $(BIN)/playwright install --with-deps --only-shell chromium
endif

demo: $(VENV)/.installed rabbitmq  ## train the digits federation on a real broker and a real bucket, then verify it
	$(BIN)/fedfa local run examples/digits.yaml --trainers 2 --jobs-per-trainer 4 --verify

test: setup  ## the tests, on a real RabbitMQ and a real S3 server: faults, and 20,000 schedules
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-fast: $(VENV)/.installed  ## the tests that need no server
	$(BIN)/python -m pytest -m "not services and not browser" --schedules 2000

test-rabbit4: setup  ## the tests with servers, on RabbitMQ 4 in a Debian 13 root; as root
	tests/rabbitmq4-root.sh $(RABBITMQ4_ROOT)
	FEDFA_RABBITMQ_ROOT=$(RABBITMQ4_ROOT) $(BIN)/python -m pytest tests/services -n $(WORKERS) --dist loadfile --no-loadscope-reorder

chaos: setup  ## MINUTES (30) of random faults on real processes, then every invariant
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED))

soak: setup  ## 10,000 merges, then 10,000 with kills: nothing grows; then 200,000 simulated schedules
	$(BIN)/python benchmarks/soak.py --merges 10000 --kill-every 10
	$(BIN)/python -m pytest tests/simulation -n $(WORKERS) --schedules 200000

bench-setup: setup  ## other frameworks' environments, and a bucket with 100,000 manifests; 2 GB
	$(BIN)/python benchmarks/peers.py --setup
	$(BIN)/python benchmarks/scale.py --setup --log-folder $(BENCH_LOG)

bench: setup  ## every benchmark but those of bench-long; then docs/benchmarks.md
	$(BIN)/python benchmarks/merge.py
	$(BIN)/python benchmarks/aggregator.py
	$(BIN)/python benchmarks/dispatch.py
	$(BIN)/python benchmarks/concurrency.py
	$(BIN)/python benchmarks/crew.py
	$(BIN)/python benchmarks/recovery.py
	$(BIN)/python benchmarks/scale.py --log-folder $(BENCH_LOG)
	$(BIN)/python benchmarks/dashboard.py
	$(BIN)/python benchmarks/report.py

bench-long: setup  ## 438 MB models (8 GB of memory), time to an accuracy, prefetch, compression, BatchNorm
	$(BIN)/python benchmarks/merge.py --models bert
	$(BIN)/python benchmarks/aggregator.py --models bert
	$(BIN)/python benchmarks/speedup.py
	$(BIN)/python benchmarks/prefetch.py
	$(BIN)/python benchmarks/smaller_updates.py
	$(if $(FEDFA_DATA),$(BIN)/python benchmarks/smaller_updates.py --tasks cifar10)
	$(if $(FEDFA_DATA),$(BIN)/python benchmarks/batchnorm.py)
	$(BIN)/python benchmarks/report.py

check: $(VENV)/.installed  ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

chart: $(VENV)/.installed  ## lint, render and check the Helm chart, in every scenario
	$(BIN)/python k8s/generate.py --check
	$(BIN)/python -m pytest tests/chart

images:  ## build the four images (k8s/images.sh has the options)
	k8s/images.sh

images-test: $(VENV)/.installed  ## run the chart's pods with those images in podman, and kill each
	$(BIN)/python k8s/images_test.py

docs: $(VENV)/.installed  ## build the documentation into site/, strictly; it needs no other host
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.installed  ## serve it while you write
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --watch shared --watch services

format: $(VENV)/.installed  ## format the code, and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove what the other targets made here
	rm -rf $(VENV) runs site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
