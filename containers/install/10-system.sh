#!/usr/bin/env bash
# Bring a Debian or Ubuntu base up to date, and add what Python packages cannot bring: Python, MPI, a compiler, and the
# user-space InfiniBand libraries. Makes the virtual environment that the next scripts fill.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=containers/pins/cpu.env
source "$here/../pins/${VARIANT:?set it to a name in containers/pins}.env"
export DEBIAN_FRONTEND=noninteractive

# Nobody reads manuals or translations inside an image. Licences stay.
cat >/etc/dpkg/dpkg.cfg.d/slipway <<END
path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
END

packages=(
    ca-certificates           # downloads of data sets
    python3 python3-venv
    "libpython$PYTHON_VERSION-dev" g++ # torch.compile and Horovod's build compile C++ against Python
    openmpi-bin openssh-client # mpirun reaches other nodes by ssh
    ibverbs-providers librdmacm1 # NCCL and UCX load them if the host has InfiniBand
)
if ! { apt-get -qq update && apt-get -qq upgrade && apt-get -qq install --no-install-recommends "${packages[@]}"; } >/dev/null; then
    echo "10-system: apt-get could not install the above: no network in the build, or a base that is neither Debian nor Ubuntu with Python $PYTHON_VERSION" >&2
    exit 1
fi
python3 -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$PYTHON_VERSION" || {
    echo "10-system: the base has $(python3 --version) and the pins say $PYTHON_VERSION: another BASE_IMAGE, or change PYTHON_VERSION and run \`make locks\`" >&2
    exit 1
}
# The link-time optimiser is a third of the compiler and torch.compile does without; so do extensions that link Python's
# archive rather than its library.
rm -f /usr/lib/gcc/*/*/lto1 /usr/lib/gcc/*/*/lto-dump /usr/lib/python3*/config-*/libpython*.a /usr/lib/*/libpython*.a
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log /var/log/alternatives.log

python3 -m venv /opt/venv
ln -s "containers/pins/$VARIANT.env" /opt/slipway/pins.env
