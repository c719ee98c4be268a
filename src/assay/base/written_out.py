"""Characters that are obeyed and not seen: they move a cursor, answer as if somebody typed, or turn the rest of
a line around. Where texts that others wrote are shown, they are written out: `\\u001b`, as JSON does."""

import re

OBEYED = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
"""All of them, as a regular expression: of controls, the end of a line and the tabulator are none."""


def written_out(text: str) -> str:
    """The text with each of them written out."""
    return re.sub(OBEYED, lambda found: f"\\u{ord(found[0]):04x}", text)
