"""Names of runs, recipes and campaigns, from users and from files.

A name becomes a folder, a word of a command line and a line of a job script. So it must be a valid name of one
folder on one line; `shell_line` quotes what a shell would interpret.
"""

import difflib
import shlex
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator

from assay.base.errors import ConfigError

LONGEST = 240
"""Bytes. File systems take 255, and related files add a suffix to the name."""


def _one_folder(text: str) -> str:
    is_name = isinstance(text, str) and text not in ("", ".", "..") and "/" not in text and text.isprintable()
    if not is_name or len(text.encode()) > LONGEST:
        raise ValueError(
            f"{text!r:.80} is not a valid name: it must be a text that names one folder, without '/', line breaks or "
            f"other invisible characters, and have at most {LONGEST} bytes"
        )
    return text


Name = Annotated[str, AfterValidator(_one_folder)]
"""The name of one folder, on one line."""


def checked_name(text: str, *, of: str) -> str:
    """Return the name; raises `ConfigError`, which begins with `of`, if it is not valid."""
    try:
        return _one_folder(text)
    except ValueError as error:
        raise ConfigError(f"{of}: {error}.") from error


def meant(name: str, known: Iterable[str]) -> str:
    """Return `; perhaps you meant 'x'` if a known name is similar, else an empty string."""
    guesses = difflib.get_close_matches(name, list(known), n=1)
    return f"; perhaps you meant '{guesses[0]}'" if guesses else ""


def shell_line(*words: str) -> str:
    """Return the words quoted for a shell, or for sbatch; raises `ConfigError` if one holds a line break."""
    for word in words:
        if not word.isprintable():
            raise ConfigError(
                f"{word!r:.200} cannot be written into a script: it holds a line break or another invisible character."
            )
    return shlex.join(words)
