"""Restricts predictions to read-only commands of assay, given as words and never run by a shell."""

import shlex
from collections.abc import Sequence

from assay.base.errors import ConfigError
from assay.base.visible import written_out

ASKING = (
    ("show",),
    ("diff",),
    ("goodput",),
    ("audit",),
    ("replay",),
    ("rollout",),
    ("data", "show"),
    ("data", "diff"),
    ("eval", "history"),
    *(("triage", name) for name in ("failures", "symptoms", "fixed", "slow", "skew", "hang", "startup", "data", "ci")),
)
"""Read-only commands with `--json` output."""
NOT_ASKING = ("--keep", "--keys", "--help", "-h", "--json")
"""Options that write or print no result; `--json` is added."""


def command_words(text: str) -> tuple[str, ...]:
    """Split a command, with or without a leading `assay`. Raises `ConfigError` if it is not read-only."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--predicts {_shown(text)}: {error}.") from error
    words = words[1:] if words[:1] == ["assay"] else words
    json_command(words)
    return tuple(word for word in words if word != "--json")


def json_command(words: Sequence[str]) -> list[str]:
    """Return the arguments that print the result as JSON. Raises `ConfigError` if the command is not
    read-only."""
    command = next((name for name in ASKING if tuple(words[: len(name)]) == name), None)
    shown = _shown(shlex.join(words))
    if command is None:
        known = ", ".join(" ".join(name) for name in ASKING)
        raise ConfigError(f"--predicts '{shown}': not a command of assay that only asks. There are: {known}.")
    options = [word for word in words[len(command) :] if word != "--json"]
    if (refused := next((word for word in options if word.partition("=")[0] in NOT_ASKING), None)) is not None:
        raise ConfigError(f"--predicts '{shown}': leave {refused} out; a prediction only asks.")
    return [*command, "--json", *options]


def _shown(text: str) -> str:
    return written_out(text)[:200]
