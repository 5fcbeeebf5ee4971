# `make` lists the targets. Each runs one script of build/ or one command. Pass settings on the
# command line: make train ARGS="--epochs 5"

# The parts of the tests that `make test` runs after the setup; core is a subset of distributed.
# `make test-all` also runs the others: slow (of unit), distributed, gpu (`make gpu`), and three that
# need root. image builds the CPU image from both recipes; in-image tests it and trains in it; cluster
# trains on a Slurm cluster of two nodes, also in the image (SYSTEM=1 installs Slurm).
export PARTS ?= lint unit core

# Settings that the scripts read from the environment; each script describes its own.
export VARIANT BASE_IMAGE ROUTES BUILD_ARGS SCRATCH SRC HOROVOD

.DEFAULT_GOAL := help
.PHONY: help setup train test test-all test-quick lint docs figures cluster wheelhouse image test-image run pull \
    coverage bench gpu gpu-pack mutants generate prove prove-fresh pins locks clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | \
	while IFS='|' read -r target text; do printf '  %-12s %s\n' "$$target" "$$text"; done

setup: ## create .venv with everything, including the tests' tools (SYSTEM=1 installs missing system packages with apt-get)
	@build/setup test

train: ## train the digits example on this machine, on its GPUs, in the image if it exists (ARGS="--epochs 5" adds flags)
	@build/train $(ARGS)

test: ## set up, lint, and run the quick tests (PARTS="unit core": only these parts)
	@build/test

test-all: ## run all tests of CI: those of `make test`, of ranks, of the image, on a Slurm cluster (root, SYSTEM=1)
	@PARTS="$(PARTS) slow distributed gpu image in-image cluster" build/test

test-quick: ## run only the unit tests, for the inner loop: five minutes on two cores
	@build/setup test
	@PATH="$(CURDIR)/.venv/bin:$$PATH" pytest -n logical --dist worksteal tests/unit

lint: ## run the linters, format check, type check and shellcheck
	@build/setup test
	@build/lint

docs: ## build the documentation site into site/, with search
	@build/docs

figures: ## draw the figures of the documentation, some from real runs (ARGS="overview.svg")
	@build/setup test
	@PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/python build/pictures $(ARGS)

cluster: ## open a shell on the login node of a Slurm cluster of two nodes on this machine (root; SYSTEM=1 installs Slurm)
	@build/cluster

wheelhouse: ## download all packages of a virtual environment into wheelhouse/, for nodes without a network (VARIANT=cpu, HOROVOD=1)
	@build/wheelhouse $(or $(WHEELHOUSE),wheelhouse)

image: ## build dist/slipway-cpu.sif, from both recipes (VARIANT=cuda, BASE_IMAGE=, ROUTES=, SCRATCH=)
	@build/image

test-image: ## test the images in dist/ and train in them, also with this checkout's sources (VARIANT=cuda12)
	@PARTS=in-image build/test

run: ## run ARGS="COMMAND ..." in IMAGE=dist/slipway-cpu.sif (SRC=src: with this checkout's sources, without a rebuild)
	@build/run $(or $(IMAGE),dist/slipway-cpu.sif) $(ARGS)

pull: ## convert a published IMAGE=docker://... to dist/NAME.sif
	@build/pull $(IMAGE)

coverage: ## measure the branch coverage of src/ by the unit and distributed tests, in all processes that they start
	@build/setup test
	@build/coverage

bench: ## compare the speed with other programs, as tables and a figure in runs/ (ARGS="training --rounds 9")
	@build/setup test
	@PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/python bench $(ARGS)

gpu: ## run correctness tests, benchmarks, start and unit tests on this machine's GPU, in 8 minutes; small on the CPU without one (ARGS="start --out DIR")
	@build/gpu $(ARGS)

gpu-pack: ## fill gpu-pack/ with the wheels that `make gpu` needs on a machine without a network
	@build/gpu-env pack gpu-pack

mutants: ## change the code in small ways and check that tests fail (ARGS="FOLDER --seed 1 --count 400 FILE...")
	@build/setup test
	@PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/python build/mutants $(or $(ARGS),runs/mutants)

generate: ## regenerate the library's settings, reference pages, configs/schema.json, job scripts
	@build/setup test
	@PATH="$(CURDIR)/.venv/bin:$$PATH" build/generate

prove: ## run the long tests that `make test` omits, some on a real OpenPBS (OPENPBS_SOURCE: its tarball; default: fetch from upstream)
	@build/setup test
	@build/openpbs >/dev/null || echo 'prove: no OpenPBS, so its tests are skipped'
	PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/pytest -m prove

prove-fresh: ## run `make train` and `make test` in a fresh Debian (needs root; SYSTEM=1 as in setup)
	@build/fresh-chroot

pins: ## request the digest of the base's tag from the registry, and write it into the pins and both recipes
	@build/pins

locks: ## regenerate containers/locks from pyproject.toml and the pins (VARIANT=cuda12: only that variant)
	@python3 build/lock $(VARIANT)

clean: ## remove .venv, the other environments, the site and the tools' caches; keep runs/ and data/
	rm -rf .venv .venv-docs site .cache $(patsubst containers/pins/%.env,.venv-%,$(wildcard containers/pins/*.env)) .mypy_cache .pytest_cache .ruff_cache
