# `make` lists the targets. Each runs one script of build/ or one command. Settings are given on the
# command line: make train ARGS="--epochs 5"

# The parts of the tests that `make test` runs after the set-up: core is a choice of distributed.
# `make test-all` runs the others too: slow (of unit), distributed, gpu (`make gpu`), and three that
# need root: image builds the CPU image from both recipes; in-image tests it and trains in it;
# cluster trains on a Slurm cluster of two nodes, also in the image (SYSTEM=1 installs Slurm).
export PARTS ?= lint unit core

# Settings that the scripts read from the environment; each script describes its own.
export VARIANT BASE_IMAGE ROUTES BUILD_ARGS SCRATCH SRC HOROVOD

.DEFAULT_GOAL := help
.PHONY: help setup train test test-all test-quick lint cluster wheelhouse image test-image run pull \
    coverage bench gpu gpu-pack mutants generate prove prove-fresh pins locks clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | \
	while IFS='|' read -r target text; do printf '  %-12s %s\n' "$$target" "$$text"; done

setup: ## make .venv with everything, tests included (SYSTEM=1 installs missing system packages by apt-get)
	@build/setup test

train: ## train the digits example on this machine, on its GPUs, in the image if there is one (ARGS="--epochs 5" adds flags)
	@build/train $(ARGS)

test: ## set up, lint, and run the quick tests (PARTS="unit core": these parts)
	@build/test

test-all: ## all tests that CI runs: of ranks, of the image, on a Slurm cluster (root, SYSTEM=1), and those of `make test`
	@PARTS="$(PARTS) slow distributed gpu image in-image cluster" build/test

test-quick: ## the unit tests alone, for the inner loop: four minutes on two cores
	@build/setup test
	@PATH="$(CURDIR)/.venv/bin:$$PATH" pytest -n logical --dist worksteal tests/unit

lint: ## lint, format check, types, shellcheck
	@build/setup test
	@build/lint

cluster: ## a shell on the login node of a Slurm cluster of two nodes on this machine (root; SYSTEM=1 installs Slurm)
	@build/cluster

wheelhouse: ## download all packages of a virtual environment into wheelhouse/, for nodes without a network (VARIANT=cpu, HOROVOD=1)
	@build/wheelhouse $(or $(WHEELHOUSE),wheelhouse)

image: ## build dist/slipway-cpu.sif, from both recipes (VARIANT=cuda, BASE_IMAGE=, ROUTES=, SCRATCH=)
	@build/image

test-image: ## test the images in dist/, and train in them, with this checkout's sources too (VARIANT=cuda12)
	@PARTS=in-image build/test

run: ## run ARGS="COMMAND ..." in IMAGE=dist/slipway-cpu.sif (SRC=src: with this checkout's sources, without a rebuild)
	@build/run $(or $(IMAGE),dist/slipway-cpu.sif) $(ARGS)

pull: ## convert a published IMAGE=docker://... into dist/NAME.sif
	@build/pull $(IMAGE)

coverage: ## branch coverage of src/ by the unit and distributed tests, with all processes that they start
	@build/setup test
	@build/coverage

bench: ## compare the speed with that of other programs, as a table and a figure in runs/ (ARGS="training --rounds 9")
	@build/setup test
	@PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/python bench $(ARGS)

gpu: ## correctness, benches, start and unit tests on this machine's GPU, in 8 minutes; small without one (ARGS="start --out DIR")
	@build/gpu $(ARGS)

gpu-pack: ## fill gpu-pack/ with the wheels that `make gpu` needs on a machine without a network
	@build/gpu-env pack gpu-pack

mutants: ## change the code in small ways, and see whether a test notices (ARGS="FOLDER --seed 1 --count 400 FILE...")
	@build/setup test
	@PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/python build/mutants $(or $(ARGS),runs/mutants)

generate: ## regenerate the library's settings, tables of docs/contract.md, configs/schema.json, job scripts
	@build/setup test
	@PATH="$(CURDIR)/.venv/bin:$$PATH" build/generate

prove: ## the long tests that `make test` leaves out, some on a real OpenPBS (OPENPBS_SOURCE: its tarball; else from upstream)
	@build/setup test
	@build/openpbs >/dev/null || echo 'prove: no OpenPBS, so its tests are skipped'
	PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/pytest -m prove

prove-fresh: ## `make train` and `make test` in a fresh Debian (needs root; SYSTEM=1 as in setup)
	@build/fresh-chroot

pins: ## ask the registry for the digest of the base's tag, and write it into the pins and both recipes
	@build/pins

locks: ## regenerate containers/locks from pyproject.toml and the pins (VARIANT=cuda12: of that variant alone)
	@python3 build/lock $(VARIANT)

clean: ## remove .venv, those of other variants and the tools' caches; runs/ and data/ are kept
	rm -rf .venv $(patsubst containers/pins/%.env,.venv-%,$(wildcard containers/pins/*.env)) .mypy_cache .pytest_cache .ruff_cache
