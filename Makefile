# `make` lists the targets. Each calls one script in build/ or one command; settings go on the command line: make train ARGS="--epochs 5"

# Minutes after which a part of `make test` counts as hung: well above what it takes on two quiet cores with nothing cached, and
# together below the 90 that CI allows, with its two `make train`.
export BUDGET_SETUP       := 10
export BUDGET_CHECK       := 2
export BUDGET_UNIT        := 12
export BUDGET_DISTRIBUTED := 23
export BUDGET_IMAGE       := 14
export BUDGET_IN_IMAGE    := 11
export BUDGET_CLUSTER     := 14

# What `make test` runs besides the set-up. Three more parts take root: image builds the CPU image by both recipes, in-image
# tests it and trains in it, cluster trains on a Slurm of two nodes, in it too (SYSTEM=1 installs Slurm). CI runs all:
# make test SYSTEM=1 PARTS="check unit distributed image in-image cluster"
export PARTS ?= check unit distributed

# What `make image` reads besides its defaults; build/image says what they mean.
export VARIANT BASE_IMAGE ROUTES BUILD_ARGS SCRATCH SRC HOROVOD

.DEFAULT_GOAL := help
.PHONY: help setup train test test-quick check cluster generate wheelhouse image test-image run pull bench coverage prove prove-fresh pins locks clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r target text; do printf '  %-12s %s\n' "$$target" "$$text"; done

setup: ## make .venv with everything, tests included (SYSTEM=1 installs missing system packages by apt-get)
	@build/setup test

train: ## train the digits example on this machine, in the image if there is one (ARGS="--epochs 5" adds flags)
	@build/train $(ARGS)

test: ## set up, check, and run the tests, each part within its budget
	@build/test

test-quick: ## the unit tests alone, for the inner loop: under a minute
	@build/setup test
	@PATH="$(CURDIR)/.venv/bin:$$PATH" pytest -n auto --dist worksteal tests/unit

check: ## lint, format check, types, shellcheck
	@build/setup test
	@build/check

cluster: ## a shell on the login node of a Slurm cluster of two nodes on this machine (root; SYSTEM=1 installs Slurm)
	@build/cluster

wheelhouse: ## download into wheelhouse/ all that a virtual environment takes, for nodes without a network (VARIANT=cpu, HOROVOD=1)
	@build/wheelhouse $(or $(WHEELHOUSE),wheelhouse)

image: ## build dist/slipway-cpu.sif, from both recipes (VARIANT=cuda, BASE_IMAGE=, ROUTES=, SCRATCH=)
	@build/image

test-image: ## test the images in dist/, and train in them, with this checkout's sources too (VARIANT=cuda12)
	@PARTS=in-image build/test

run: ## run ARGS="COMMAND ..." in IMAGE=dist/slipway-cpu.sif (SRC=src: with this checkout's sources, without a rebuild)
	@build/run $(or $(IMAGE),dist/slipway-cpu.sif) $(ARGS)

pull: ## turn a published IMAGE=docker://... into dist/NAME.sif
	@build/pull $(IMAGE)

coverage: ## branch coverage of src/ by the unit and distributed tests, all processes that they start included
	@build/setup test
	@build/coverage

bench: ## speed, as ratios against named peers, each in one interleaved run
	@build/setup test
	PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/python bench/jobgen_cpu.py

generate: ## write anew what is generated: the library's settings, tables of docs/contract.md, configs/schema.json, job scripts
	@build/setup test
	@PATH="$(CURDIR)/.venv/bin:$$PATH" build/generate

prove: ## the long proofs that `make test` leaves out, some on a real OpenPBS (OPENPBS_SOURCE: its tarball; else from upstream)
	@build/setup test
	@build/openpbs >/dev/null || echo 'prove: no OpenPBS, so its tests are skipped'
	PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/pytest -m prove

prove-fresh: ## `make train` and `make test` in a fresh Debian chroot (needs root; SYSTEM=1 as in setup)
	@build/fresh-chroot

pins: ## ask the registry for the digest of the base's tag, and write it into the pins and both recipes
	@build/pins

locks: ## regenerate containers/locks from pyproject.toml and the pins (VARIANT=cuda12: of that variant alone)
	@python3 build/lock $(VARIANT)

clean: ## remove .venv and the tools' caches; runs/ and data/ stay
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
