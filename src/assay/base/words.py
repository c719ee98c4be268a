"""Split text of any script into words.

A word is a run of letters and digits with their combining marks. In scripts without spaces between words (Chinese,
Japanese, Thai, Khmer, ...), each character with its marks is a word. Every other character that is not white space
(punctuation, symbols, emoji) is a word by itself.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from itertools import chain

_SPACELESS = (
    "\u0e00-\u0fff"  # Thai, Lao, Tibetan
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Myanmar
    "\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\uaa80-\uaadf"  # Khmer, Tai
    "\u1b00-\u1b7f\ua980-\ua9df"  # Balinese, Javanese
    "\u2e80-\u2fdf\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
    "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001b000-\U0001b16f"  # kana
)
_VOICED_MARKS = "\uff9e\uff9f"
"""The voicing marks of half-width kana, which Unicode classifies as letters."""
_SHAPELESS = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef"
"""Fillers and variation selectors; other invisible characters have category Cf."""


def words_of(text: str, *, signs: bool = True) -> list[str]:
    """Return the words of a text in order, with punctuation and symbols unless `signs` is false.

    Invisible characters are left out: zero-width spaces and joiners, soft hyphens, direction marks. Without
    signs, `_` separates words.
    """
    if text.isascii():
        return (_ASCII if signs else _ASCII_WORDS).findall(text)
    return _any_script(signs).findall(without_invisible(text))


def without_invisible(text: str) -> str:
    """Remove invisible characters."""
    return text if text.isascii() else _invisible().sub("", text)


_ASCII = re.compile(r"\w+|[^\w\s]")
_ASCII_WORDS = re.compile(r"[A-Za-z0-9]+")


@cache
def _any_script(signs: bool) -> re.Pattern[str]:
    marks = _ranges("M")
    character = rf"[{_SPACELESS}][{marks}{_VOICED_MARKS}]*"
    part = rf"(?![{_SPACELESS}])" if signs else rf"(?![{_SPACELESS}_])"
    word = rf"(?:{part}[\w{marks}])+"
    return re.compile("|".join([character, word, *([rf"[^\w\s][{marks}]*"] if signs else [])]))


@cache
def _invisible() -> re.Pattern[str]:
    return re.compile(f"[{_ranges('Cf')}{_SHAPELESS}]")


def _ranges(category: str) -> str:
    """Return the characters of a Unicode category as the content of a character class; `re` has no categories."""
    planes = chain(range(0x80, 0x20000), range(0xE0000, 0xE0200))
    return "".join(
        f"{re.escape(chr(first))}-{re.escape(chr(last))}"
        for first, last in _runs(code for code in planes if unicodedata.category(chr(code)).startswith(category))
    )


def _runs(codes: Iterable[int]) -> list[tuple[int, int]]:
    """Return increasing numbers as (first, last) of consecutive runs."""
    runs: list[tuple[int, int]] = []
    for code in codes:
        if runs and code == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], code)
        else:
            runs.append((code, code))
    return runs
