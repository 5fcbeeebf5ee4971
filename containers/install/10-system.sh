#!/usr/bin/env bash
# Upgrade a Debian or Ubuntu base and install the software that pip cannot install: Python, MPI, a
# C++ compiler, and the user-space InfiniBand libraries. Create the virtual environment /opt/venv,
# which the next scripts fill. Reads VARIANT, a name in containers/pins.
set -euo pipefail
unset CDPATH
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=containers/pins/cpu.env
source "$here/../pins/${VARIANT:?set it to a name in containers/pins}.env"
export DEBIAN_FRONTEND=noninteractive

die() { echo "10-system: $*" >&2; exit 1; }

# Install no manuals and no translations; keep licenses.
cat >/etc/dpkg/dpkg.cfg.d/slipway <<END
path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
END

packages=(
    ca-certificates # for downloads of data sets
    python3 python3-venv
    "libpython$PYTHON_VERSION-dev" g++ # torch.compile and Horovod's build compile C++
    openmpi-bin openssh-client # mpirun reaches other nodes by ssh
    numactl # for torchrun --numa-binding, a site's numa_binding
    ibverbs-providers librdmacm1 # NCCL and UCX load them if the host has InfiniBand
)
{
    apt-get -qq update &&
        apt-get -qq upgrade &&
        apt-get -qq install --no-install-recommends "${packages[@]}"
} >/dev/null ||
    die "apt-get could not install the above: no network in the build," \
        "or a base that is neither Debian nor Ubuntu with Python $PYTHON_VERSION"
check='import sys; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])'
python3 -c "$check" "$PYTHON_VERSION" ||
    die "the base has $(python3 --version) and the pins say $PYTHON_VERSION: another BASE_IMAGE," \
        "or change PYTHON_VERSION and run \`make locks\`"

# Remove the link-time optimizer: it is half of the compiler's size, and torch.compile does not use
# it. Extensions that link Python's shared library do not need it either; only those that link the
# static one do. Nothing here compiles with -fsanitize.
rm -f /usr/lib/gcc/*/*/lto1 /usr/bin/*lto-dump*
rm -f /usr/lib/gcc/*/*/lib{a,hwa,l,t,ub}san* /usr/lib/*/lib{a,hwa,l,t,ub}san.so.*
rm -f /usr/lib/python3*/config-*/libpython*.a /usr/lib/*/libpython*.a
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old
rm -rf /var/log/apt /var/log/dpkg.log /var/log/alternatives.log

python3 -m venv /opt/venv
ln -s "containers/pins/$VARIANT.env" /opt/slipway/pins.env
