"""Counts the tokens with which trained sequences begin and end, while rows are encoded.

Control tokens are the tokenizer's special tokens, and the added tokens that its chat template writes around
messages. Paired tags (`<think>`, `</think>`) are markup, which conversations may contain.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tokenizers import Encoding, Tokenizer

from assay.base.errors import DataError
from assay.data.dataset.formats.conversation_parts import GUARD, Span, common_length
from assay.data.dataset.formats.template import ChatTemplate
from assay.records.dataset import BoundaryTokens

_TAG = re.compile(r"</?([\w:.-]+)>")


def control_tokens(tokenizer: Tokenizer, template: ChatTemplate | None) -> dict[str, int]:
    """Return control token -> id."""
    added = {token.content: (number, token) for number, token in tokenizer.get_added_tokens_decoder().items()}
    written = template.source + template.probe if template is not None else ""
    named = template.named if template is not None else frozenset()

    def is_markup(text: str) -> bool:
        tag = _TAG.fullmatch(text)
        return tag is not None and text not in named and {f"<{tag[1]}>", f"</{tag[1]}>"} <= added.keys()

    return {
        text: number
        for text, (number, token) in added.items()
        if not text.isspace()
        and (token.special or text in written)
        and not (is_markup(text) and (text in written or not token.special))
    }


def pattern_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """Compile a pattern that finds control tokens in text, the longest first."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)")


def guarded(value: Any, pattern: re.Pattern[str]) -> Any:
    """Insert a guard into each control token in a text, or in all texts of a JSON value, so that it is encoded as
    text."""
    if isinstance(value, Mapping):
        return {guarded(key, pattern): guarded(item, pattern) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [guarded(item, pattern) for item in value]
    while isinstance(value, str) and (found := pattern.search(value)):
        if len(found[0]) == 1:
            raise DataError(
                f"{found[0]!r} is a control token of one character, which cannot be encoded as text. Remove it."
            )
        value = f"{value[: found.start() + 1]}{GUARD}{value[found.start() + 1 :]}"
    return value


@dataclass
class PlainEncoding:
    """Token ids and offsets of a text."""

    ids: list[int]
    offsets: list[Span]
    overflowing: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)


TextEncoding = Encoding | PlainEncoding


def encode_guarded(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> PlainEncoding:
    """Encode a text that may hold guards; guards produce no tokens."""
    encoding = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    if GUARD not in text:
        return PlainEncoding(encoding.ids, encoding.offsets, encoding.overflowing)
    text_tokens = [
        (token, (begin, end))
        for token, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True)
        if text[begin:end] != GUARD
    ]
    if any(GUARD in text[begin:end] for _, (begin, end) in text_tokens):
        raise DataError("the tokenizer cannot encode a control token as text. Take it out.")
    return PlainEncoding([token for token, _ in text_tokens], [span for _, span in text_tokens], encoding.overflowing)


def encode_as_text(tokenizer: Tokenizer, texts: Sequence[str]) -> list[TextEncoding]:
    """Encode texts with the tokenizer's special tokens around them; control tokens inside are text."""
    pattern = pattern_of(control_tokens(tokenizer, None))
    return [
        encode_guarded(tokenizer, guarded(text, pattern), add_special_tokens=True) if pattern.search(text) else encoding
        for text, encoding in zip(texts, tokenizer.encode_batch_fast(texts), strict=True)
    ]


class End(NamedTuple):
    """How a trained turn ends."""

    token: int | None
    """The control token; None if the turn ends in ordinary text."""
    is_trained: bool


@dataclass
class Boundaries:
    """Statistics of how some rows begin and end."""

    begin: tuple[int, ...] | None = None
    """Common prefix of all sequences; None before the first."""
    ends: Counter[int] = field(default_factory=Counter)
    num_ends: int = 0
    num_trained_ends: int = 0

    def add_begin(self, ids: Sequence[int]) -> None:
        num_common = len(ids) if self.begin is None else common_length(self.begin, ids)
        self.begin = tuple(map(int, ids[:num_common]))

    def add_end(self, end: End) -> None:
        self.num_ends += 1
        self.num_trained_ends += end.is_trained and end.token is not None
        if end.token is not None:
            self.ends[end.token] += 1

    def merge(self, later: "Boundaries") -> None:
        if later.begin is not None:
            self.add_begin(later.begin)
        self.ends += later.ends
        self.num_ends += later.num_ends
        self.num_trained_ends += later.num_trained_ends

    def to_json(self) -> str:
        return json.dumps({**vars(self), "ends": list(self.ends.items())})

    @classmethod
    def from_json(cls, text: str) -> "Boundaries":
        tree: dict[str, Any] = json.loads(text)
        begin = tree["begin"]
        return cls(**{**tree, "begin": begin and tuple(begin), "ends": Counter(dict(tree["ends"]))})

    def record(self) -> BoundaryTokens:
        return BoundaryTokens(
            begin_ids=self.begin or (),
            end_ids=tuple(token for token, _ in self.ends.most_common()),
            num_ends=self.num_ends,
            num_trained_ends=self.num_trained_ends,
        )


def end_of(encoding: TextEncoding, text: str, control: Collection[int], last: int) -> End:
    """Return the end of a turn whose last trained token is `last`.

    White space may follow the control token. If none is trained, the control token that follows counts.
    """
    ids, offsets = encoding.ids, encoding.offsets

    def is_blank(index: int) -> bool:
        begin, end = offsets[index]
        return ids[index] not in control and not text[begin:end].strip()

    after = last + 1
    while last >= 0 and is_blank(last):
        last -= 1
    if last >= 0 and ids[last] in control:
        return End(ids[last], True)
    while after < len(ids) and is_blank(after):
        after += 1
    has_end = after < len(ids) and ids[after] in control
    return End(ids[after] if has_end else None, False)
