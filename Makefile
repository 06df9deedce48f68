# All targets use .venv, created from the hash-locked requirements. `make run` and `make test` need only
# Python >= 3.11, pip and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Created, with what `make run` needs, with what all other targets need.
EMPTY  := $(VENV)/.empty
RUNTIME := $(VENV)/.runtime
STAMP  := $(VENV)/.installed
ARGS   ?=
# The earlier commit of `make bench-against` and `make upgrade-test`.
BASE   ?= HEAD~1
# Seconds of `make fuzz` for each target.
TIME   ?= 60
# Modules or folders of `make mutants`, and tests instead of those beside them.
PATHS  ?=
TESTS  ?=
# One more than two cores: some tests wait for processes and sockets.
WORKERS ?= 4
# Each worker has a control plane of its own. Twice as many as two cores: some tests wait for a minute.
CLUSTER_WORKERS ?= 4
# Instance types of the nodes of `make sandbox`.
NODES  ?= trn2.48xlarge
BUILDER ?= docker
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

# Where bytecode is not kept, each process that a test starts compiles all its modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install run test timed-test thorough lint lint-ruff lint-mypy lint-imports format bench bench-against bench-cluster bench-scale docs reference cel-oracle fuzz mutants cluster-test upgrade-test faults sandbox man manifests images sbom release sign verify release-test proto grammar lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv from the hash-locked requirements

# Python compiles what it imports; most modules of the packages are never imported.
PIP = $(BIN)/python -m pip --quiet --disable-pip-version-check
# The distributions of this repository; their dependencies are locked. An editable install prints a warning about folders of the same name, which is what it is for.
EDITABLE = PYTHONWARNINGS=ignore $(PIP) install --no-deps --no-build-isolation --no-index -e ./kubecel -e .

$(EMPTY): requirements/pip.txt requirements/webhook.txt requirements/dev.txt pyproject.toml kubecel/pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "Python >= 3.11 is needed, this is %d.%d: set PYTHON=" % v[:2])'
	$(PYTHON) -m venv --clear $(VENV)
# The pip that comes with Python 3.11 takes four times as long to find the locked files in an index.
	$(PIP) install --require-hashes -r requirements/pip.txt
	@touch $@

$(RUNTIME): $(EMPTY)
	$(PIP) install --no-compile --require-hashes -r requirements/webhook.txt
	$(EDITABLE)
	@touch $@

$(STAMP): $(EMPTY)
	$(PIP) install --no-compile --require-hashes -r requirements/dev.txt
	$(EDITABLE)
	@touch $@ $(RUNTIME)

run: $(RUNTIME) ## serve the webhook on https://127.0.0.1:9443 and convert an example through it (ARGS=--once stops after that)
	$(BIN)/python -m commands.cli.demo $(ARGS)

test: $(STAMP) ## run every test that needs no control plane
	$(BIN)/python -m pytest --ignore=tests/cluster -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

timed-test: $(STAMP) ## run the tests that bound a time, and assert it: on a machine that does nothing else
	NEURON_DRA_TIMED=1 KUBECEL_TIMED=1 $(BIN)/python -m pytest -n0 $(ARGS) $$(grep -rl --include='*.py' 'timing import' tests kubecel/kubecel_tests)

thorough: $(STAMP) ## run the property tests with 20 times as many examples, and ten times as many mixtures of claims
	NEURON_DRA_MIXTURES=100000 $(BIN)/python -m pytest -n $(WORKERS) --hypothesis-profile=thorough --timeout=7200 $(ARGS) \
	  --ignore=tests/cluster -m "hypothesis or thorough"

lint: lint-ruff lint-mypy lint-imports ## run ruff, mypy --strict and the import contracts

lint-ruff: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-mypy: $(STAMP)
	$(BIN)/mypy

lint-imports: $(STAMP)
	$(BIN)/lint-imports
	cd kubecel && ../$(BIN)/lint-imports

format: $(STAMP) ## format the sources with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## run the benchmarks (load from wrk)
	$(BIN)/python -m benchmarks $(ARGS)
	$(BIN)/python -m benchmarks.curves
	$(BIN)/python -m benchmarks.prepare
	$(BIN)/python -m benchmarks.policies
	$(BIN)/python -m benchmarks.packing
	$(BIN)/python -m benchmarks.report

bench-against: $(STAMP) ## measure this build and an earlier commit side by side (BASE=<commit>; ARGS="--rows conversion" for some rows)
	$(BIN)/python -m benchmarks.against --base $(BASE) $(ARGS)

bench-cluster: $(STAMP) ## measure pods created through a real API server, and a real scheduler (binaries from KUBEBUILDER_ASSETS)
	$(BIN)/python -m benchmarks.through_api_server $(ARGS)
	$(BIN)/python -m benchmarks.scheduling
	$(BIN)/python -m benchmarks.free_runs
	$(BIN)/python -m benchmarks.drivers

bench-scale: $(STAMP) ## measure a replica and a driver in a cluster of up to 5,000 nodes, and write the table into docs/scale.md (needs KUBEBUILDER_ASSETS)
	$(BIN)/python -m benchmarks.scale --write docs/scale.md $(ARGS)

cluster-test: $(STAMP) ## run the tests that need a control plane (binaries from KUBEBUILDER_ASSETS; ARGS="--shuffle 1" for a random order)
	$(BIN)/python -m pytest tests/cluster --ignore=tests/cluster/test_containers.py -n $(CLUSTER_WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

upgrade-test: $(STAMP) ## go from an earlier commit to this build and back, with pods that run (BASE=<commit>; binaries as for cluster-test)
	NEURON_DRA_UPGRADE_BASE=$(BASE) $(BIN)/python -m pytest tests/cluster/test_upgrade.py -rs $(ARGS)

container-test: $(STAMP) ## build the images with buildah, and run the chart in containers on a real kubelet
	$(BIN)/python -m pytest tests/cluster/test_containers.py -rs $(ARGS)

sandbox: $(STAMP) ## run a cluster with emulated Neuron nodes until Ctrl-C (binaries as for cluster-test; NODES="trn2.48xlarge inf2.48xlarge")
	$(BIN)/python -m tests.cluster.sandbox $(NODES)

cel-oracle: $(STAMP) ## compare random CEL expressions with a real API server (binaries from KUBEBUILDER_ASSETS; ARGS="--count 5000 --seed 1")
	$(BIN)/python -m kubecel_tests.oracle $(ARGS)

fuzz: $(STAMP) ## fuzz what parses and patches, TIME seconds for each target (Linux; atheris is installed on first use)
	$(BIN)/python -m pip --quiet --disable-pip-version-check install --require-hashes -r requirements/fuzz.txt
	$(BIN)/python -m tests.fuzz --seconds $(TIME) $(ARGS)

mutants: $(STAMP) ## list changes of code that tests do not notice (PATHS="conversion/claims/layout.py"; mutmut is installed on first use)
	$(BIN)/python -m pip --quiet --disable-pip-version-check install --require-hashes -r requirements/mutants.txt
	$(BIN)/python -m tests.mutants $(ARGS) $(PATHS) $(if $(TESTS),--tests $(TESTS))

faults: $(STAMP) ## run every disturbance at full length, and write their table into docs/benchmarks.md (needs KUBEBUILDER_ASSETS)
	$(BIN)/python -m pytest -m fault -n0 --faults docs/benchmarks.md tests/faults tests/kubeletplugin/test_crash.py tests/kubeletplugin/test_full_disk.py \
	  tests/cluster/test_soak.py tests/cluster/test_faults.py tests/cluster/test_driver_faults.py $(ARGS)

docs: $(STAMP) ## build the book into docs/_build/html; a link without a target is an error
	$(BIN)/python -m sphinx -q -W --keep-going -d docs/_build/cache docs docs/_build/html
	@echo "docs/_build/html/index.html"

reference: $(STAMP) ## write the pages of the book that are made from the code: errors.md, commands, settings, policy fields
	$(BIN)/python docs/write_reference.py

man: $(STAMP) ## write man pages of all commands into build/man
	$(BIN)/python -m commands.cli.man build/man
	@echo "man -l build/man/neuron-dra.1"

manifests: $(STAMP) ## render deploy/manifests from the chart, and copy the policy packs into the chart
	$(BIN)/python -m deploy.render

images: ## build both images with docker (BUILDER=podman for another; PYTHON_IMAGE=name@sha256:... for another base)
	$(BUILDER) build -f deploy/Dockerfile $(if $(PYTHON_IMAGE),--build-arg PYTHON_IMAGE=$(PYTHON_IMAGE)) --target webhook -t neuron-dra:$(VERSION) .
	$(BUILDER) build -f deploy/Dockerfile $(if $(PYTHON_IMAGE),--build-arg PYTHON_IMAGE=$(PYTHON_IMAGE)) --target kubelet-plugin -t neuron-dra-kubelet-plugin:$(VERSION) .

BILL = $(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --of JSON

# kubecel has no entry in the lock: it is built from the same commit.
define SBOM
	@mkdir -p dist
	{ cat requirements/webhook.txt; grep -o 'kubecel==[0-9.]*' pyproject.toml; } | $(BILL) -o dist/sbom-webhook.cdx.json -
	$(BILL) -o dist/sbom-kubelet-plugin.cdx.json requirements/kubelet-plugin.txt
endef

sbom: $(STAMP) ## write dist/sbom-*.cdx.json: the locked packages of each image, as CycloneDX
	$(SBOM)

RELEASE = $(if $(UNPINNED),--unpinned) --webhook="$(WEBHOOK_DIGEST)" --kubeletPlugin="$(KUBELET_PLUGIN_DIGEST)" \
  --platforms="$(PLATFORMS)" --base="$(PYTHON_IMAGE)" --registry="$(REGISTRY)" --downloads="$(DOWNLOADS)" \
  $(if $(SIGNING_KEY),--key="$(SIGNING_KEY)")

# PLATFORMS=linux/amd64,linux/arm64 REGISTRY=<host>/<path> DOWNLOADS=<URL of the files> SIGNING_KEY=<PEM>. Without buildah:
# WEBHOOK_DIGEST=, KUBELET_PLUGIN_DIGEST= of pushed images; UNPINNED=1 for a trial. CONTRIBUTING.md, Releases.
release: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
release: $(STAMP) ## write all files of a version to dist/: images, chart, install.yaml, krew plugin, SBOMs, notes, checksums, provenance
	rm -rf dist build kubecel/build
	$(SBOM)
	$(BIN)/python -m pip --quiet --disable-pip-version-check wheel --no-deps --no-build-isolation --no-index --wheel-dir dist ./kubecel .
	$(BIN)/python -m deploy.release dist $(RELEASE)

sign: $(STAMP) ## sign dist/ with an identity (OpenID Connect), by sigstore, which is installed on first use
	$(BIN)/python -m pip --quiet --disable-pip-version-check install --require-hashes -r requirements/release.txt
	$(BIN)/python -c 'import json; print(json.dumps(json.load(open("dist/provenance.json"))["predicate"]))' > build/predicate.json
	$(BIN)/python -m sigstore attest --predicate build/predicate.json --predicate-type https://slsa.dev/provenance/v1 \
	  dist/SHA256SUMS dist/*.whl dist/*.tgz dist/*.tar.gz dist/install.yaml

verify: $(STAMP) ## verify signatures and checksums of a release in dist/ (SIGNING_PUB=<public key in PEM>)
	$(BIN)/python -m deploy.signing dist $(SIGNING_PUB)

release-test: $(STAMP) ## install everything that a release has (a package index; skopeo, kubectl and KUBEBUILDER_ASSETS where they are)
	NEURON_DRA_INDEX=1 $(BIN)/python -m pytest -rs -n0 tests/deploy/test_release.py tests/deploy/test_signed_release.py tests/cluster/test_release_files.py $(ARGS)

proto: $(STAMP) ## generate the kubelet's protocols again from their .proto files
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. kubeletplugin/pb/*.proto tests/cluster/pb/*.proto

grammar: $(STAMP) ## compute the parser table of CEL again, for the locked cel-python and Lark
	$(BIN)/python -m kubecel_tests.parser_table

# The locks of the images take their versions from the lock of development. They have what kubecel needs, not kubecel.
COMPILE = uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
  --no-emit-index-url --no-emit-find-links --no-emit-package kubecel

lock: ## resolve the requirements again (needs uv)
	printf 'pip\nsetuptools\n' | $(COMPILE) --upgrade - -o requirements/pip.txt
	$(COMPILE) --upgrade --all-extras pyproject.toml -o requirements/dev.txt
	$(COMPILE) --constraint requirements/dev.txt --extra webhook --extra tracing pyproject.toml -o requirements/webhook.txt
	$(COMPILE) --constraint requirements/dev.txt --extra kubelet-plugin --extra tracing pyproject.toml -o requirements/kubelet-plugin.txt
	echo "atheris>=3.0,<3.1; sys_platform == 'linux'" | $(COMPILE) --upgrade - -o requirements/fuzz.txt
	echo "sigstore>=4.5,<4.6" | $(COMPILE) --constraint requirements/dev.txt --upgrade - -o requirements/release.txt
	echo "mutmut>=3.8,<3.9; sys_platform != 'win32'" | $(COMPILE) --constraint requirements/dev.txt --upgrade - -o requirements/mutants.txt

clean: ## remove .venv, caches and build output
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info \
	  $(addprefix kubecel/,.pytest_cache .hypothesis .import_linter_cache build *.egg-info)
