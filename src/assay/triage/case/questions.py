"""Which commands a prediction may run: those of assay that only ask, as words, never through a shell."""

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
"""Each prints JSON with `--json`, and changes nothing that it is asked about."""
NOT_ASKING = ("--keep", "--keys", "--help", "-h", "--json")
"""Options with which such a command writes, or does not answer; `--json` is added."""


def command_words(text: str) -> tuple[str, ...]:
    """The words of a command as a person types it, with or without `assay` before them; a `ConfigError` where
    it is none that only asks."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--predicts {_shown(text)}: {error}.") from error
    words = words[1:] if words[:1] == ["assay"] else words
    json_command(words)
    return tuple(word for word in words if word != "--json")


def json_command(words: Sequence[str]) -> list[str]:
    """The words behind `assay` that print the answer as JSON; a `ConfigError` where they do not only ask."""
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
