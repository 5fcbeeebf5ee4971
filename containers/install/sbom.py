"""Print a CycloneDX bill of materials of this system's Debian packages and this environment's Python packages."""

import json
import subprocess
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import quote


def component(kind: str, name: str, version: str, *, licence: str | None = None) -> dict:
    """Return one component, identified by its package URL (https://github.com/package-url/purl-spec)."""
    url = f"pkg:{kind}/{name}@{quote(version, safe='')}"
    entry = {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
    return entry | ({"licenses": [{"license": {"name": licence}}]} if licence else {})


def debian(system: str) -> Iterator[dict]:
    """Yield the installed Debian packages."""
    form = "${db:Status-Abbrev}${Package} ${Version}\n"
    for line in subprocess.check_output(["dpkg-query", "--show", "--showformat", form], text=True).splitlines():
        if line.startswith("ii "):
            name, version = line[3:].split()
            yield component(f"deb/{system}", name, version)


def python() -> Iterator[dict]:
    """Yield the distributions on this interpreter's path, without license texts of several lines."""
    for found in sorted(distributions(), key=lambda found: found.name.lower()):
        licence = found.metadata.get("License-Expression") or found.metadata.get("License")
        short = licence.strip() if licence and "\n" not in licence.strip() else None
        yield component("pypi", found.name.lower().replace("_", "-"), found.version, licence=short)


def main() -> None:
    """Print the document, without date and serial number, so that the same image gives the same bytes."""
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    components = [*debian(release["ID"].strip('"')), *python()]
    subject = {"type": "container", "name": "slipway"}
    bom = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": subject}}
    print(json.dumps(bom | {"components": components}, indent=1))


if __name__ == "__main__":
    main()
