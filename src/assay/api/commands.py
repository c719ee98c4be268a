"""Commands of assay in processes of their own."""

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from assay.base.errors import AssayError, ConfigError
from assay.cli.wording import in_python
from assay.workflows.processes.foreground import flags_of, run_in_foreground


def run_command(*arguments: str, is_json: bool = True, accepts: Sequence[int] = (0,)) -> str:
    """Run a command and return its output; raise its error, or `KeyboardInterrupt` once it has stopped on Ctrl-C."""
    check_overrides(arguments)
    if wrong := next((name for name in arguments[1:] if name in ("--help", "--help-all")), ""):
        raise ConfigError(in_python(f"No such option '{wrong}'.", arguments))
    flags = ["--json"] if is_json else []
    reworded = partial(in_python, arguments=arguments)
    found = run_in_foreground([*arguments, *flags], module="assay.api", reworded=reworded)
    error = AssayError(reworded(found.error) or f"assay {arguments[0]} failed; what it printed says why.")
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


def path_text(path: object, *, of: str, hint: str) -> str:
    """Return a path as text. Raises `ConfigError`, which begins with `of`, for anything else."""
    if isinstance(path, str | os.PathLike):
        return str(path)
    raise ConfigError(f"{of}: expected a path, found a {type(path).__name__}. {hint}")


def check_overrides(overrides: Sequence[object]) -> None:
    """Raise `ConfigError` for an override that is not a text."""
    if wrong := [override for override in overrides if not isinstance(override, str)]:
        raise ConfigError(f"overrides are texts such as 'trainer.epochs=2'; found a {type(wrong[0]).__name__}.")
