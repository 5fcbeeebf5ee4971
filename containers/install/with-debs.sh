#!/usr/bin/env bash
# with-debs.sh PACKAGE... -- COMMAND...: install Debian packages, run a command that needs them, and
# remove them again with the dependencies that came with them.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
packages=()
while [ "$1" != -- ]; do
    packages+=("$1")
    shift
done
shift

apt-get -qq update
apt-get -qq install --no-install-recommends "${packages[@]}" >/dev/null
"$@"
# The two options: by default apt keeps dependencies that any remaining package recommends or
# suggests.
apt-get -qq purge --auto-remove \
    -o APT::AutoRemove::RecommendsImportant=false -o APT::AutoRemove::SuggestsImportant=false \
    "${packages[@]}" >/dev/null
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
