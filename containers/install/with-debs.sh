#!/usr/bin/env bash
# with-debs.sh PACKAGE... -- COMMAND...: install Debian packages, run a command that needs them, and
# remove them with their newly installed dependencies.
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
# By default apt keeps dependencies that any remaining package recommends or suggests; the two
# options disable this.
apt-get -qq purge --auto-remove \
    -o APT::AutoRemove::RecommendsImportant=false -o APT::AutoRemove::SuggestsImportant=false \
    "${packages[@]}" >/dev/null
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
