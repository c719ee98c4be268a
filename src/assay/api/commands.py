"""Commands of assay in processes of their own."""

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from assay.base.errors import AssayError, ConfigError
from assay.cli.wording import KEYWORDS, in_python
from assay.workflows.processes.foreground import run_in_foreground


def run_command(*arguments: str, is_json: bool = True, accepts: Sequence[int] = (0,)) -> str:
    """Run a command of assay and return its output; its progress stays on stderr, and its error is raised.

    Ctrl-C goes to the command, which commits what it is doing and stops; then `KeyboardInterrupt` is raised.
    """
    check_overrides(arguments)
    flags = ["--json"] if is_json else []
    reworded = partial(in_python, arguments=arguments)
    found = run_in_foreground([*arguments, *flags], module="assay.api", reworded=reworded)
    error = AssayError(reworded(found.error) or f"'assay {' '.join(arguments[:2])}' failed.")
    error.exit_code = found.exit_code
    if found.is_interrupted:
        raise KeyboardInterrupt from error if found.error else None
    if found.exit_code not in accepts:
        raise error
    return found.output


def start_training(arguments: Sequence[str], workers: int | str, options: Mapping[str, Any]) -> str:
    """Run `assay train` and return the run's id."""
    printed = run_command("train", *arguments, f"--workers={workers}", *flags_of(options))
    try:
        return str(json.loads(printed)["run_id"])
    except (ValueError, KeyError):
        raise ConfigError(f"with these options, no run is started. The command printed:\n{printed}") from None


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """Return options of Python as those of a command: `run_id="first"` as `--run-id=first`; each of a list."""
    flags = []
    for name, value in options.items():
        if name in ("help", "help_all"):
            raise ConfigError(f"There is no keyword '{name}'. {KEYWORDS}")
        option = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list | tuple) else [value]:
            if one is False and name == "requeue":
                flags.append("--no-requeue")
            elif one is not None and one is not False:  # 0 is a value
                flags.append(option if one is True else f"{option}={one}")
    return flags


def path_text(path: object, *, of: str, hint: str) -> str:
    """Return a path as text. Raises `ConfigError`, which begins with `of`, for anything else."""
    if isinstance(path, str | os.PathLike):
        return str(path)
    raise ConfigError(f"{of}: expected a path, found a {type(path).__name__}. {hint}")


def check_overrides(overrides: Sequence[object]) -> None:
    """Raise `ConfigError` for an override that is not a text."""
    for override in overrides:
        if not isinstance(override, str):
            found = type(override).__name__
            raise ConfigError(f"overrides are texts such as 'trainer.epochs=2'; found a {found}: {override!r:.60}.")
