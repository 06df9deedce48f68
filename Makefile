# Everything runs from .venv, made from the hash-locked requirements: `make run` and `make test` need
# nothing but Python >= 3.11, pip and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
ARGS   ?=
BUILDER ?= docker
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help install run test lint format bench cluster-test manifests images sbom proto lock clean

help: ## say what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv from the hash-locked requirements

$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "Python >= 3.11 is needed, this is %d.%d: set PYTHON=" % v[:2])'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip --quiet --disable-pip-version-check install --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip --quiet --disable-pip-version-check install --no-deps --no-build-isolation --no-index -e .
	@touch $@

run: $(STAMP) ## serve the webhook on https://127.0.0.1:9443 and convert an example through it (ARGS=--once stops after that)
	$(BIN)/python -m webhook.cli.demo $(ARGS)

test: $(STAMP) ## run every test that needs no control plane
	$(BIN)/python -m pytest --ignore=tests/cluster -n auto --dist loadfile $(ARGS)

lint: $(STAMP) ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## let ruff rewrite the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## measure, side by side in one run
	$(BIN)/python -m benchmarks $(ARGS)
	$(BIN)/python -m benchmarks.prepare
	$(BIN)/python -m benchmarks.policies
	$(BIN)/python -m benchmarks.packing

cluster-test: $(STAMP) ## tests on a real control plane from KUBEBUILDER_ASSETS
	$(BIN)/python -m pytest tests/cluster $(ARGS)

manifests: $(STAMP) ## render deploy/manifests from the chart, and copy the policy packs into it
	$(BIN)/python deploy/render.py

images: ## build both images with docker (BUILDER=podman for another; PYTHON_IMAGE=name@sha256:... pins the base)
	$(BUILDER) build -f deploy/Dockerfile $(if $(PYTHON_IMAGE),--build-arg PYTHON_IMAGE=$(PYTHON_IMAGE)) --target webhook -t neuron-dra:$(VERSION) .
	$(BUILDER) build -f deploy/Dockerfile $(if $(PYTHON_IMAGE),--build-arg PYTHON_IMAGE=$(PYTHON_IMAGE)) --target kubelet-plugin -t neuron-dra-kubelet-plugin:$(VERSION) .

sbom: $(STAMP) ## write dist/sbom.cdx.json: what the images have from the lock, as CycloneDX
	@mkdir -p dist
	$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --of JSON -o dist/sbom.cdx.json requirements/runtime.txt

proto: $(STAMP) ## generate the kubelet's protocols again from their .proto files
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. kubeletplugin/pb/*.proto tests/cluster/pb/*.proto

lock: $(STAMP) ## resolve the requirements again (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links --upgrade pyproject.toml -o requirements/runtime.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links --upgrade --extra dev pyproject.toml -o requirements/dev.txt

clean: ## remove what make made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info
