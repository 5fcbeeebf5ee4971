# Recipe of the image for docker or buildah: `docker build -t slipway .`. apptainer.def builds the same image; a test
# compares the two. The build steps are in containers/install, the versions in containers/pins.
ARG BASE_IMAGE=docker.io/library/debian:bookworm-20250520-slim
# hadolint ignore=DL3006 # the tag is in the argument
FROM ${BASE_IMAGE} AS slipway

# A name in containers/pins, and additional package sources for pip.
ARG VARIANT=cuda
ARG PIP_INDEX_URL=""
ARG PIP_EXTRA_INDEX_URL=""
ARG PIP_FIND_LINKS=""
ARG PIP_CERT=""

# Set no variables of NCCL, Open MPI or OpenMP: they belong to the job. PYTHONNOUSERSITE excludes the user's ~/.local.
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENV PYTHONNOUSERSITE=1
ENV LC_ALL=C.UTF-8

# One layer per script, ordered from rare to frequent changes.
COPY containers/pins /opt/slipway/containers/pins
COPY containers/locks /opt/slipway/containers/locks
COPY containers/install /opt/slipway/containers/install
RUN /opt/slipway/containers/install/10-system.sh
RUN /opt/slipway/containers/install/20-torch.sh
RUN /opt/slipway/containers/install/30-packages.sh
RUN SLIPWAY_CACHE=/mnt /opt/slipway/containers/install/40-horovod.sh
COPY containers/entrypoint.sh /opt/slipway/containers/entrypoint.sh
COPY containers/smoke.sh /opt/slipway/containers/smoke.sh
COPY containers/allreduce.py /opt/slipway/containers/allreduce.py
COPY LICENSE /opt/slipway/LICENSE
COPY README.md /opt/slipway/README.md
COPY pyproject.toml /opt/slipway/pyproject.toml
COPY configs /opt/slipway/configs
COPY jobscripts /opt/slipway/jobscripts
COPY src /opt/slipway/src
RUN /opt/slipway/containers/install/50-trainer.sh
RUN /opt/slipway/containers/install/60-sbom.sh

# Only for the labels: the pins hold the versions, and a test compares these defaults with them.
ARG TORCH_VERSION=2.15.0
ARG CUDA_VERSION=13.2
ARG HOROVOD_VERSION=0.28.1
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title=slipway
LABEL org.opencontainers.image.version=${VERSION}
LABEL org.opencontainers.image.revision=${REVISION}
LABEL org.opencontainers.image.source=${SOURCE}
LABEL org.opencontainers.image.licenses=Apache-2.0
LABEL slipway.variant=${VARIANT}
LABEL slipway.torch=${TORCH_VERSION}
LABEL slipway.cuda=${CUDA_VERSION}
LABEL slipway.horovod=${HOROVOD_VERSION}

ENTRYPOINT ["/opt/slipway/containers/entrypoint.sh"]
