"""Texts of single tokens, or their bytes if they are part of a character."""

import re
from functools import lru_cache
from typing import NamedTuple

from tokenizers import Tokenizer

_UNFINISHED = "\ufffd"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""Name of a byte in tokenizers with byte fallback."""


class TokenText(NamedTuple):
    """The text of a single token."""

    text: str
    """Unique among tokens that are parts of characters: these are named by their bytes."""
    text_bytes: bytes | None
    """None if the tokenizer does not tell."""


class TokenTexts:
    """Detokenizes single tokens of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        # After another token: some tokenizers omit the space before a text's first word.
        self._before = tokenizer.encode("a", add_special_tokens=False).ids
        self._start = tokenizer.decode(self._before)
        self.of = lru_cache(maxsize=1 << 16)(self._of)

    def _of(self, token: int) -> TokenText:
        name = self._tokenizer.id_to_token(token)
        if name is None:
            return TokenText("", None)  # a vocabulary may be padded beyond its tokenizer's
        if token in self._special:
            return TokenText(name, name.encode())
        text = self._tokenizer.decode([*self._before, token]).removeprefix(self._start)
        if _UNFINISHED not in text:
            return TokenText(text, text.encode())
        found = _bytes_of(name)
        if found is None:
            return TokenText(name, None)
        return TokenText("bytes:" + "".join(f"\\x{byte:02x}" for byte in found), found)


def _bytes_of(name: str) -> bytes | None:
    """Return the bytes that a token's name in the vocabulary stands for."""
    if (match := _BYTE.fullmatch(name)) is not None:
        return bytes([int(match[1], 16)])
    if any(character not in _BYTE_OF for character in name):
        return None
    return bytes(_BYTE_OF[character] for character in name)


def _byte_alphabet() -> dict[str, int]:
    """Return the characters that name bytes in byte-level vocabularies: printable ones themselves, the others
    from 256 on (Radford et al. 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): other for n, other in enumerate(others)}


_BYTE_OF = _byte_alphabet()
