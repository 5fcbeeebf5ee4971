#!/usr/bin/env bash
# Write the image's bill of materials (CycloneDX 1.6) with the packages that dpkg and pip list.
set -euo pipefail
unset CDPATH
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python "$here/sbom.py" >"${here%/containers/install}/sbom.cdx.json"
