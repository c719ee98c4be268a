"""Foreign text on a terminal: control characters are escaped, not executed.

An error message or a row of data may hold characters that move the cursor, set the window title, inject input or
reverse the rest of a line. Everything that a command or a rank prints is escaped as `\\u001b`, as in JSON. Colours
pass through.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

OBEYED = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
"""Control and bidirectional characters as a regular expression, without newline and tab."""

_COLOUR = r"(?:[0-4]|7|2[2-9]|[349][0-79]|10[0-7]|[34]8;5;\d{1,3}|[34]8(?:;\d{1,3}){4})"
_NOT_SHOWN = re.compile(
    rf"(?P<colours>\x1b\[(?:{_COLOUR}(?:;{_COLOUR})*)?m)"
    r"|(?P<return>\A\r)"  # a progress line that is overwritten
    rf"|{OBEYED}"
)


def written_out(text: str) -> str:
    """Escape every control character."""
    return re.sub(OBEYED, lambda found: f"\\u{ord(found[0]):04x}", text)


def visible(text: str) -> str:
    """Escape every control character that is neither a colour nor a leading carriage return."""
    return _NOT_SHOWN.sub(lambda found: found[0] if found.lastgroup else written_out(found[0]), text)


class _Visible:
    """A stream that passes written text through `visible`."""

    def __init__(self, stream: IO[str]) -> None:
        self.terminal = stream

    def write(self, text: str) -> int:
        return self.terminal.write(visible(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.terminal, name)


def terminal_of(stream: IO[str]) -> IO[str]:
    """Return the underlying stream, for code that moves the cursor and escapes its texts itself."""
    return cast(IO[str], getattr(stream, "terminal", stream))


@contextmanager
def visible_output() -> Iterator[None]:
    """Escape control characters in all that this process prints in the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(Any, _Visible(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
