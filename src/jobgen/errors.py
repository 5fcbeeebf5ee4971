"""What a user can act on: one line each, saying what, where, and what to do."""


class JobgenError(Exception):
    """No script can be made, or none submitted; the message says why and what to do."""


def nearest(name: str, choices: "list[str]") -> str:
    """Return " Did you mean 'x'?" for the choice nearest to ``name``, or "" where none is near."""
    from difflib import get_close_matches  # noqa: PLC0415 -- only needed on errors

    found = get_close_matches(name, choices, n=1, cutoff=0.5)
    return f" Did you mean {found[0]!r}?" if found else ""
