"""From TOML files and ``--set`` to a Site and a JobSpec."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple, Type, TypeVar

import msgspec

from jobgen.errors import JobgenError, nearest
from jobgen.model import JobSpec, Site

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T", Site, JobSpec)


def load(path: str, settings: List[str], kind: Type[T]) -> T:
    """Return the ``kind`` that the TOML file ``path`` describes, changed by those of ``settings`` that are its keys.

    A setting is ``key=value`` or ``table.key=value``; the value is TOML where it can be, else text.

    Raises:
        JobgenError: for a file that is missing or not TOML, an unknown key, or an impossible value.
    """
    table = _read(path)
    for setting in settings:
        key, _, value = setting.partition("=")
        *above, last = key.split(".", 1)
        target = table.setdefault(above[0], {}) if above else table
        if not isinstance(target, dict):
            raise JobgenError(f"--set {setting}: {above[0]!r} is no table.")
        target[last] = _value(value)
    known = list(kind.__struct_fields__)
    for key in table:
        if key not in known:
            raise JobgenError(f"{path}: unknown key {key!r}.{nearest(key, known)} Valid: {', '.join(known)}.")
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise JobgenError(f"{path}: {error}.") from error


def divide(settings: List[str]) -> Tuple[List[str], List[str]]:
    """Return the settings for the description of the job and those for the site.

    ``options`` is in both: it is the job's there, which wins.

    Raises:
        JobgenError: for a setting that is neither's, or has no value.
    """
    spec, site = list(JobSpec.__struct_fields__), list(Site.__struct_fields__)
    groups: Tuple[List[str], List[str]] = ([], [])
    for setting in settings:
        key, equals, _ = setting.partition("=")
        name = key.split(".", 1)[0]
        if not equals:
            raise JobgenError(f"--set {setting}: write key=value.")
        if name not in spec + site:
            raise JobgenError(f"--set {setting}: unknown key {name!r}.{nearest(name, spec + site)}")
        groups[name not in spec].append(setting)
    return groups


def _read(path: str) -> Dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise JobgenError(f"cannot read {path}: {error.strerror}. See jobscripts/ for examples.") from error
    except ValueError as error:  # of TOML or of UTF-8
        raise JobgenError(f"{path} is not valid TOML: {error}.") from error


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text
