"""Loading of a Site or JobSpec from a TOML file and ``--set``, with one-line errors for invalid input."""

from __future__ import annotations

import sys
from typing import Any, Dict, Iterator, List, Tuple, Type, TypeVar, Union

import msgspec

from jobgen.base.errors import JobgenError
from jobgen.base.job import JobSpec, Site
from jobgen.launchers import launcher_names
from jobgen.runtimes import container_names
from jobgen.schedulers import scheduler_names
from slipway.base.bounded_read import read_head
from slipway.base.errors import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T", Site, JobSpec)

LIMIT = 1 << 16
"""Maximum bytes of a file: thirty times the longest existing one."""
LARGEST = 1_000_000
"""Maximum of any number in these files: nodes, GPUs, minutes."""
AT_LEAST_ONE = ("nodes", "minutes", "cpus_per_gpu", "devices_per_rank")
"""Fields that must be at least 1."""
MAX_NAME_LENGTH = 64
TYPES = {
    str: "text in quotes",
    int: "a whole number",
    bool: "true or false",
}


def load(path: str, settings: List[str], kind: Type[T]) -> T:
    """Read a Site or JobSpec (``kind``) from the TOML file ``path`` and override its keys with ``settings``.

    A setting is ``key=value`` or ``table.key=value``. The value is parsed as TOML; if that fails, and in ``env``, it is
    text.

    Raises:
        JobgenError: for a file that is missing or not TOML, an unknown key, or an invalid value.
    """
    table = _read(path)
    for setting in settings:
        key, _, value = setting.partition("=")
        *above, last = key.split(".", 1)
        target = table.setdefault(above[0], {}) if above else table
        if not isinstance(target, dict):
            raise JobgenError("bad-value", f"--set {setting}: {above[0]!r} is not a table.")
        read = _value(value)
        target[last] = value if above == ["env"] and not isinstance(read, str) else read
    return _convert(table, path, settings, kind)


def check_value(key: str, value: Any) -> None:
    """Check a value of the site's field ``key``, or of a key in a table, TABLE.KEY.

    Raises:
        JobgenError: if it is invalid.
    """
    field, _, name = key.partition(".")
    _convert({"name": "site", field: {name: value} if name else value}, "answer", [], Site)


def _convert(table: Dict[str, Any], path: str, settings: List[str], kind: Type[T]) -> T:
    """Return the table of the file ``path``, with ``settings``, as a ``kind``.

    Raises:
        JobgenError: for an unknown key, or an invalid value.
    """
    known = list(kind.__struct_fields__)
    for key in table:
        if key not in known:
            place = _place(path, settings, key)
            raise JobgenError(
                "unknown-key", f"{place}: unknown key {_shown(key)}.{_hint(key, kind)} Valid: {', '.join(known)}."
            )
    for name, choices in choices_of_names().items():
        if name in table and table[name] not in choices:
            hint = did_you_mean(table[name], choices) if isinstance(table[name], str) else ""
            place = _place(path, settings, name)
            raise JobgenError(
                "bad-value", f"{place}: {name} is {_shown(table[name])}: it must be {_either(choices)}.{hint}"
            )
    try:
        found = msgspec.convert(table, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        name, why = _explanation(table, kind)
        raise JobgenError("bad-value", f"{_place(path, settings, name)}: {why}") from error
    for name, value in _values("", table):
        _check(_place(path, settings, name), name, value)
    # a spec's name is also the name of the job, its log and its run folders
    if kind is JobSpec and not (_is_name(found.name) and len(found.name) <= MAX_NAME_LENGTH):
        raise JobgenError(
            "bad-value",
            f"{_place(path, settings, 'name')}: name is {_shown(found.name)}: it must start with a letter or digit "
            f"and have at most {MAX_NAME_LENGTH} letters, digits, dots, dashes and underscores.",
        )
    return found


def choices_of_names() -> Dict[str, List[str]]:
    """Return the valid values of the fields that name a module: scheduler, launcher, container."""
    return {
        "scheduler": scheduler_names(),
        "launcher": ["", *launcher_names()],
        "container": [*container_names(), "none"],
    }


def divide(settings: List[str]) -> Tuple[List[str], List[str]]:
    """Split ``settings`` into those of the spec and those of the site.

    Both have ``options``: such a setting goes to the spec, which takes precedence.

    Raises:
        JobgenError: for a setting of neither, or without a value.
    """
    spec, site = list(JobSpec.__struct_fields__), list(Site.__struct_fields__)
    groups: Tuple[List[str], List[str]] = ([], [])
    for setting in settings:
        key, equals, _ = setting.partition("=")
        name = key.split(".", 1)[0]
        if not equals:
            raise JobgenError("bad-value", f"--set {setting}: write key=value.")
        if name not in spec + site:
            raise JobgenError(
                "unknown-key", f"--set {setting}: unknown key {_shown(name)}.{did_you_mean(name, spec + site)}"
            )
        groups[name not in spec].append(setting)
    return groups


def _read(path: str) -> Dict[str, Any]:
    try:
        data = read_head(path, limit=LIMIT + 1)
    except OSError as error:
        raise JobgenError(
            "cannot-read", f"cannot read {path}: {error.strerror}. See jobscripts/ for examples."
        ) from error
    except ValueError as error:  # NUL
        raise JobgenError("cannot-read", f"{path!r} is not a valid path: {error}.") from error
    if len(data) > LIMIT:
        raise JobgenError("bad-toml", f"{path} has more than {LIMIT} bytes: it is not a site or spec.")
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise JobgenError("bad-toml", f"{path} is not valid TOML: byte {error.start} is not UTF-8.") from error
    except ValueError as error:
        raise JobgenError("bad-toml", f"{path} is not valid TOML: {str(error)[:200]}.") from error
    except RecursionError as error:
        raise JobgenError("bad-toml", f"{path} is not valid: its tables are nested too deeply.") from error


def _value(text: str) -> Any:
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def _place(path: str, settings: List[str], name: str) -> str:
    """Return the source of a key's value for messages: the last ``--set`` of the key, or the file."""
    for setting in reversed(settings):
        key = setting.partition("=")[0]
        if name == key or name.startswith((f"{key}.", f"{key}[")) or key.startswith(f"{name}."):
            return f"--set {setting[:60]}"
    return path


def _is_name(text: str) -> bool:
    """Return whether ``text`` is ASCII letters, digits and "._-", and starts with a letter or digit."""
    return text.isascii() and text[:1].isalnum() and text.translate(dict.fromkeys(map(ord, "._-"))).isalnum()


def _hint(key: str, kind: Type[T]) -> str:
    if kind is JobSpec and key in Site.__struct_fields__:
        return " It belongs in a site file."
    if kind is Site and key in JobSpec.__struct_fields__:
        return " It belongs in a spec file."
    return did_you_mean(key, list(kind.__struct_fields__))


def _explanation(table: Dict[str, Any], kind: Type[T]) -> Tuple[str, str]:
    """Return the name of the first invalid field, and a sentence that states its valid values."""
    import msgspec.structs  # noqa: PLC0415 -- needed only on errors

    def is_valid(field: msgspec.structs.FieldInfo) -> bool:
        if field.name not in table:
            return not field.required
        try:
            msgspec.convert(table[field.name], field.type)
        except (msgspec.ValidationError, RecursionError):
            return False
        return True

    faulty = next(field for field in msgspec.structs.fields(kind) if not is_valid(field))
    if faulty.name not in table:
        return faulty.name, f"{faulty.name} is missing: it must be {valid_values(faulty.type)}."
    return faulty.name, _reason(faulty.name, table[faulty.name], faulty.type)


def _reason(name: str, value: Any, expected: Any) -> str:
    """Return a sentence on the invalid value of a field, or on its first invalid element or entry."""
    inner: List[Any] = list(getattr(expected, "__args__", ()))
    origin = getattr(expected, "__origin__", None)
    parts: List[Tuple[str, Any, Any]] = []
    if origin is dict and isinstance(value, dict):
        parts = [(f"{name}.{key}", part, inner[1]) for key, part in value.items()]
    elif origin is tuple and isinstance(value, list):
        parts = [(f"{name}[{number}]", part, inner[0]) for number, part in enumerate(value)]
    for part_name, part, part_type in parts:
        try:
            msgspec.convert(part, part_type)
        except (msgspec.ValidationError, RecursionError):  # noqa: PERF203 -- the first is reported
            return _reason(part_name, part, part_type)
    choices = [choice for choice in inner if isinstance(choice, str) and choice]
    hint = did_you_mean(value, choices) if isinstance(value, str) else ""
    return f"{name} is {_shown(value)}: it must be {valid_values(expected)}.{hint}"


def valid_values(kind: Any) -> str:
    """Return a description of a type's valid values."""
    inner: List[Any] = list(getattr(kind, "__args__", ()))
    origin = getattr(kind, "__origin__", None)
    if origin is dict:
        return f"a table whose values are {valid_values(inner[1])}"
    if origin is tuple:
        return f"a list whose elements are {valid_values(inner[0])}"
    if origin is Union:
        return ", ".join(valid_values(part) for part in inner[:-1]) + f", or {valid_values(inner[-1])}"
    if kind in TYPES:
        return TYPES[kind]
    return _either(inner)


def _either(choices: List[str]) -> str:
    quoted = [f"'{choice}'" for choice in choices]
    return ", ".join(quoted[:-1]) + f" or {quoted[-1]}"


def _shown(value: Any) -> str:
    """Return a value for a message: shortened, or only its type if it is a container or another object."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, (str, bool, int, float)):
        text = repr(str(value)[:60] if isinstance(value, str) else value) if _short(value) else "a huge number"
        return {"True": "true", "False": "false"}.get(text, text)
    return f"a {type(value).__name__} ({value})"


def _short(value: Any) -> bool:
    return not isinstance(value, int) or abs(value) < 1 << 63


def _values(name: str, value: Any) -> Iterator[Tuple[str, Any]]:
    """Yield the dotted name and value of each key and each leaf of a table."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield f"{name}.{key}" if name else key, key
            yield from _values(f"{name}.{key}" if name else key, part)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _values(f"{name}[{number}]", part)
    else:
        yield name, value


def _check(path: str, name: str, value: Any) -> None:
    """Reject control characters, invalid option names, and numbers out of range."""
    if isinstance(value, str) and (bad := [char for char in value if ord(char) < ord(" ") or char == "\x7f"]):
        raise JobgenError("bad-value", f"{path}: {name} contains the control character {bad[0]!r}: remove it.")
    option = name.startswith(("options.", "cpu_options."))
    if option and not _is_name(name.partition(".")[2]):
        raise JobgenError(
            "unknown-key",
            f"{path}: {_shown(name)} is not a scheduler option: write its long name without leading dashes.",
        )
    if isinstance(value, bool) or not isinstance(value, int) or (option and _short(value)):
        return
    least = 1 if name in AT_LEAST_ONE else 0
    if not least <= value <= LARGEST:
        raise JobgenError("bad-value", f"{path}: {name} is {_shown(value)}: it must be {least} to {LARGEST}.")
