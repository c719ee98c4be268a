"""Texts that others wrote, on a terminal: shown as they are, and obeyed in nothing.

An error, a run's failure or a row's text may hold characters that move the cursor, set the window's title,
answer as if somebody typed, or turn the rest of a line around. All that a command or a rank prints passes here,
where such characters are written out: `\\u001b`, which is what JSON says, too. Colours are let through.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

OBEYED = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
"""Characters that are obeyed and not seen, as a regular expression; the end of a line and the tabulator are
none."""

_COLOUR = r"(?:[0-4]|7|2[2-9]|[349][0-79]|10[0-7]|[34]8;5;\d{1,3}|[34]8(?:;\d{1,3}){4})"
_NOT_SHOWN = re.compile(
    rf"(?P<colours>\x1b\[(?:{_COLOUR}(?:;{_COLOUR})*)?m)"
    r"|(?P<return>\A\r)"  # a line of progress that is written over
    rf"|{OBEYED}"
)


def written_out(text: str) -> str:
    """The text with each of them written out."""
    return re.sub(OBEYED, lambda found: f"\\u{ord(found[0]):04x}", text)


def visible(text: str) -> str:
    """The text with everything written out that a terminal would obey."""
    return _NOT_SHOWN.sub(lambda found: found[0] if found.lastgroup else written_out(found[0]), text)


class _Visible:
    """Passes everything on to a stream; what is written, as it is `visible`."""

    def __init__(self, stream: IO[str]) -> None:
        self.terminal = stream

    def write(self, text: str) -> int:
        """As of a stream."""
        return self.terminal.write(visible(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.terminal, name)


def terminal_of(stream: IO[str]) -> IO[str]:
    """The stream behind it: for who moves the cursor on purpose, and makes texts visible itself."""
    return cast(IO[str], getattr(stream, "terminal", stream))


@contextmanager
def visible_output() -> Iterator[None]:
    """Within, whatever this process prints is visible."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(Any, _Visible(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
