"""Names that people give and files bring along: of runs, recipes and campaigns.

A name becomes a folder, a word of a command line and a line of a job's script. So it is the name of one folder
and of nothing else, on one line; what a shell reads in it is quoted where it is written (`shell_line`).
"""

import difflib
import shlex
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator

from assay.base.errors import ConfigError

LONGEST = 240
"""Bytes: file systems take 255, and names beside it are longer."""


def _one_folder(text: str) -> str:
    if text in ("", ".", "..") or "/" in text or not text.isprintable() or len(text.encode()) > LONGEST:
        raise ValueError(
            f"{text!r:.80} is no name: it must be that of one folder, without '/', line breaks or other signs "
            f"that cannot be seen, and of {LONGEST} bytes at most"
        )
    return text


Name = Annotated[str, AfterValidator(_one_folder)]
"""The name of one folder, on one line."""


def checked_name(text: str, *, of: str) -> str:
    """The name itself, or a `ConfigError` that says of what it is none."""
    try:
        return _one_folder(text)
    except ValueError as error:
        raise ConfigError(f"{of}: {error}.") from error


def meant(name: str, known: Iterable[str]) -> str:
    """`; perhaps you meant 'x'`, or nothing."""
    guesses = difflib.get_close_matches(name, list(known), n=1)
    return f"; perhaps you meant '{guesses[0]}'" if guesses else ""


def shell_line(*words: str) -> str:
    """Words as a shell, or sbatch, reads them on one line; `ConfigError` where one would begin another line."""
    for word in words:
        if not word.isprintable():
            raise ConfigError(f"{word!r:.200} cannot stand in a script: it holds a line break or the like.")
    return shlex.join(words)
