"""Tokenises rows: each text is encoded once as a whole, and spans are mapped to tokens by offsets.

    labelled  cut at `max_tokens`
    text      cut into even pieces of at most `max_tokens`, each a row of its own
    chat      the tokens, and spans of those that share a character with a trained span
    pairs     two sequences, and the number of tokens of the common prompt
    prompts   the tokens, and the item for graders

A token across a boundary belongs to the part after it. Rows of the last three formats that exceed `max_tokens`
are dropped and counted, because a cut would go through the prompt or the completion.

The texts of `Encoder.firsts` are stored in shards, so they are part of a dataset's fingerprint: rewording a
message that `Encoder.rows` catches changes the fingerprints of datasets with such rows.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice, pairwise, takewhile
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import Tokenizer

from assay.base.errors import DataError
from assay.data.dataset.columns import ITEM, MARGIN, MASK, PROMPT_TOKENS, REJECTED, SEQUENCES, SPANS, TOKENS
from assay.data.dataset.formats.boundaries import (
    Boundaries,
    End,
    PlainEncoding,
    TextEncoding,
    control_tokens,
    encode_guarded,
    end_of,
)
from assay.data.dataset.formats.conversation_parts import GUARD, Span, common_length
from assay.data.dataset.formats.rows import RenderedRow
from assay.data.dataset.formats.template import PROBE, ChatTemplate
from assay.data.dataset.raw.span import Row
from assay.records.dataset import Format

Ids = npt.NDArray[np.int32]
_LIST = pa.list_(pa.int32())
COLUMNS: Mapping[Format, Mapping[str, pa.DataType]] = {
    "labelled": {TOKENS: _LIST, MASK: pa.list_(pa.int8())},
    "text": {TOKENS: _LIST},
    "chat": {TOKENS: _LIST, SPANS: _LIST},
    "pairs": {TOKENS: _LIST, REJECTED: _LIST, PROMPT_TOKENS: pa.int32(), MARGIN: pa.float32()},
    "prompts": {TOKENS: _LIST, ITEM: pa.string()},
}
"""Columns of each format."""
_WITHOUT_OFFSETS = ("labelled", "text", "prompts")
DETOKENIZED = "a b"
"""A tokenizer that does not reproduce this text has no decoder."""
LEAVES_OUT = "Fix the row, or drop and count all such rows with '--drop unusable'."
"""Hint after the error of a single row."""
LEAVES_OUT_ALL = "Fix them, or drop and count all of them with '--drop unusable'."
"""Hint after the errors of several rows."""


class UsableRow(NamedTuple):
    """A raw row that becomes part of the dataset."""

    where: str
    row: Row
    rendered: RenderedRow


class EncodedRow(NamedTuple):
    """A row of the dataset: its source row, and the columns of its format."""

    source_row: UsableRow
    columns: dict[str, Any]


@dataclass(eq=False)
class Encoder:
    """Encodes source rows as dataset rows, and counts what was cut, dropped or altered."""

    tokenizer: Tokenizer
    """Truncates only if rows are `labelled`."""
    format: Format
    text_field: str
    max_tokens: int
    drops_unusable: bool
    template: ChatTemplate | None = None
    """Renders conversations."""
    end: str = ""
    """End token after a text or completion."""
    keeps_end: bool = True
    """Whether the tokenizer's own final tokens end a text that has no other end."""
    counts: Counter[str] = field(default_factory=Counter)
    """`cut_rows`, `cut_tokens`, `split_texts`, `reasoning`, `long`, `unusable`, `altered`."""
    firsts: dict[str, str] = field(default_factory=dict)
    """The first dropped or altered row, by reason."""

    boundaries: Boundaries = field(default_factory=Boundaries)

    def __post_init__(self) -> None:
        self._ones = np.ones(self.max_tokens, np.int8)
        self._control = frozenset(control_tokens(self.tokenizer, self.template).values())
        unknown = getattr(self.tokenizer.model, "unk_token", None)
        self._unknown = self.tokenizer.token_to_id(unknown) if unknown else None
        probe = self.tokenizer.encode(DETOKENIZED, add_special_tokens=False).ids
        self._is_detokenizable = _without_whitespace(self.tokenizer.decode(probe)) == _without_whitespace(DETOKENIZED)

    @cached_property
    def _added_tokens(self) -> tuple[list[int], list[int]]:
        encoding = self.tokenizer.encode("a")
        is_added = encoding.special_tokens_mask
        num_before = sum(takewhile(bool, is_added))
        num_after = sum(takewhile(bool, reversed(is_added[num_before:])))
        return encoding.ids[:num_before], encoding.ids[len(is_added) - num_after :]

    @cached_property
    def _templated_begin(self) -> list[int]:
        """The control tokens that the template writes before the first message only."""
        probe = self.template.probe if self.template is not None else ""
        ids = self.tokenizer.encode(probe, add_special_tokens=False).ids
        return [*takewhile(lambda token: token in self._control and ids.count(token) == 1, ids)]

    @lru_cache(maxsize=2)  # noqa: B019
    def _completion_end(self, *, is_templated: bool) -> int | None:
        if not is_templated or self.template is None:
            return self.tokenizer.token_to_id(self.end) if self.end else None
        rendered = self.template.render_conversation(PROBE, [False, True], {}, "a probe")
        encoding = self.tokenizer.encode(rendered.text, add_special_tokens=False)
        trained = np.flatnonzero(tokens_of(encoding, rendered.spans))
        return end_of(encoding, rendered.text, self._control, int(trained[-1]))[0]

    def _alteration(self, usable: UsableRow, encodings: Sequence[TextEncoding]) -> str:
        """Describe how the tokens of a row differ from its text, ignoring white space; empty if they do not."""
        for encoding, sequence in zip(encodings, usable.rendered.sequences, strict=True):
            if self._unknown is not None and self._unknown in encoding.ids:
                return f"a part of it became {self.tokenizer.id_to_token(self._unknown)}"
            if self._is_detokenizable and self.format != "labelled":  # classifiers' tokenizers normalize
                text = _without_whitespace(sequence.text.replace(GUARD, ""))
                found = _without_whitespace(self.tokenizer.decode(encoding.ids, skip_special_tokens=False))
                if text not in found:
                    begin = common_length(text, found)
                    return f"{text[begin : begin + 20]!r} became {found[begin : begin + 20]!r}"
        return ""

    def _note(self, usable: UsableRow, encodings: Sequence[TextEncoding]) -> None:
        self.counts["reasoning"] += usable.rendered.sequences[0].num_dropped
        begin = self._templated_begin if usable.rendered.is_templated else self._added_tokens[0]
        for encoding, sequence in zip(encodings, usable.rendered.sequences, strict=True):
            ids = encoding.ids
            self.boundaries.add_begin(begin[: common_length(begin, ids)])
            if self.format == "prompts":
                if (end := self._completion_end(is_templated=usable.rendered.is_templated)) is not None:
                    self.boundaries.ends[end] += 1
            elif usable.rendered.is_templated:
                begins, ends = _offsets(encoding)
                turn_spans = dict(zip(sequence.turns, sequence.spans, strict=True))  # the last span of each turn
                for first, stop in turn_spans.values():
                    last = int(np.flatnonzero((ends > first) & (begins < stop))[-1])
                    self.boundaries.add_end(end_of(encoding, sequence.text, self._control, last))
            else:
                self.boundaries.add_end(End(ids[-1] if ids[-1] in self._control else None, True))

    def rows(self, usable: Iterator[UsableRow], batch_rows: int) -> Iterator[EncodedRow]:
        encode: Callable[..., list[dict[str, Any]]] = getattr(self, f"_{self.format}")
        while batch := list(islice(usable, batch_rows)):
            for row, encodings in zip(batch, self.encodings(batch), strict=True):
                try:
                    self._check_tokens(row, encodings)
                    found = encode(row, *encodings)
                except DataError as error:
                    if not self.drops_unusable:
                        raise DataError(f"{error} {LEAVES_OUT}") from error
                    self._count_first("unusable", str(error))
                    continue
                if self._is_long(found[0]):
                    self._count_first("long", row.where)
                    continue
                if what := self._alteration(row, encodings):
                    self._count_first("altered", f"{row.where}: {what}")
                if self.format != "labelled":
                    self._note(row, encodings)
                yield from (EncodedRow(row, columns) for columns in found)

    def _is_long(self, columns: Mapping[str, Any]) -> bool:
        return any(len(columns[name]) > self.max_tokens for name in SEQUENCES if name in columns)

    def _count_first(self, reason: str, what: str) -> None:
        self.counts[reason] += 1
        self.firsts.setdefault(reason, what)

    def encodings(self, rows: Sequence[UsableRow]) -> list[list[TextEncoding]]:
        is_fast, is_whole = self.format in _WITHOUT_OFFSETS, self.format == "labelled"
        encode = self.tokenizer.encode_batch_fast if is_fast else self.tokenizer.encode_batch
        texts = [sequence.text for usable in rows for sequence in usable.rendered.sequences]
        encodings: Iterator[TextEncoding] = iter(encode(texts, add_special_tokens=is_whole))
        return [
            [self._encoding(next(encodings), sequence.text, usable) for sequence in usable.rendered.sequences]
            for usable in rows
        ]

    def _encoding(self, encoding: TextEncoding, text: str, usable: UsableRow) -> TextEncoding:
        """Add the tokenizer's begin tokens once, and its end tokens if nothing else ends the text."""
        is_whole = self.format == "labelled"
        if GUARD in text:
            encoding = encode_guarded(self.tokenizer, text, add_special_tokens=is_whole)
        if is_whole or usable.rendered.is_templated:
            return encoding
        begin, end = self._added_tokens
        begin = begin if encoding.ids[: len(begin)] != begin else []
        end = end if self.keeps_end and self.format != "prompts" and not self.end else []
        if not begin and not end:
            return encoding
        outside = [(0, 0)]
        offsets = [*outside * len(begin), *encoding.offsets, *outside * len(end)]
        return PlainEncoding([*begin, *encoding.ids, *end], offsets)

    def _check_tokens(self, usable: UsableRow, encodings: Sequence[TextEncoding]) -> None:
        if not all(encodings):
            what = f"'{self.text_field}' has" if self.format in ("labelled", "text") else "it has"
            raise DataError(
                f"{usable.where}: {what} no tokens by this tokenizer. Drop or mend the row, or use another."
            )

    def _labelled(self, _: UsableRow, encoding: TextEncoding) -> list[dict[str, Any]]:
        if len(encoding) == self.max_tokens and (overflowing := encoding.overflowing):
            around = self.tokenizer.num_special_tokens_to_add(False)
            self.counts["cut_rows"] += 1
            self.counts["cut_tokens"] += sum(len(part) - around for part in overflowing)
        return [{TOKENS: _ids(encoding), MASK: self._ones[: len(encoding)]}]

    def _text(self, _: UsableRow, encoding: TextEncoding) -> list[dict[str, Any]]:
        ids = _ids(encoding)
        num_pieces = -(-len(ids) // self.max_tokens)
        self.counts["split_texts"] += num_pieces > 1
        boundaries = np.linspace(0, len(ids), num_pieces + 1).astype(int).tolist()
        return [{TOKENS: ids[begin:end]} for begin, end in pairwise(boundaries)]

    def _chat(self, usable: UsableRow, encoding: TextEncoding) -> list[dict[str, Any]]:
        is_trained = tokens_of(encoding, usable.rendered.sequences[0].spans)
        if not is_trained.any():
            raise DataError(
                f"{usable.where}: what is to be learned has no tokens by this tokenizer. Drop or mend the row."
            )
        if not usable.rendered.is_templated:  # end tokens of the tokenizer belong to the completion
            is_trained[is_trained.argmax() :] = True
        return [{TOKENS: _ids(encoding), SPANS: spans_of(is_trained)}]

    def _pairs(self, usable: UsableRow, good: TextEncoding, bad: TextEncoding) -> list[dict[str, Any]]:
        chosen, rejected = _ids(good), _ids(bad)
        if np.array_equal(chosen, rejected):
            raise DataError(
                f"{usable.where}: chosen and rejected are the same tokens by this tokenizer: the row prefers nothing."
            )
        boundaries = [sequence.spans[0][0] for sequence in usable.rendered.sequences]
        shared = min(first_token_of(good, boundaries[0]), first_token_of(bad, boundaries[1]))
        differ = np.flatnonzero(chosen[:shared] != rejected[:shared])
        prompt_tokens = int(differ[0]) if len(differ) else shared
        margin = usable.rendered.margin
        return [{TOKENS: chosen, REJECTED: rejected, PROMPT_TOKENS: prompt_tokens, MARGIN: margin}]

    def _prompts(self, usable: UsableRow, encoding: TextEncoding) -> list[dict[str, Any]]:
        return [{TOKENS: _ids(encoding), ITEM: usable.rendered.item}]


def _without_whitespace(text: str) -> str:
    return "".join(text.split())


def tokens_of(encoding: TextEncoding, spans: Iterable[Span]) -> npt.NDArray[np.bool_]:
    """Return which tokens share a character with one of the spans."""
    begins, ends = _offsets(encoding)
    found = np.zeros(len(begins), bool)
    for begin, end in spans:
        found |= (ends > begin) & (begins < end)
    return found


def first_token_of(encoding: TextEncoding, num_characters: int) -> int:
    """Return the index of the first token that ends after the first `num_characters`."""
    later = np.flatnonzero(_offsets(encoding)[1] > num_characters)
    return int(later[0]) if len(later) else len(encoding)


def spans_of(is_trained: npt.NDArray[np.bool_]) -> Ids:
    """Return runs of True as flat pairs [begin, end)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_trained, [False]]).astype(np.int8)))
    return edges.astype(np.int32)


def list_array(rows: Sequence[npt.NDArray[Any]], arrow_type: pa.DataType) -> pa.Array:
    """Build a list column."""
    boundaries = pa.array(np.concatenate([[0], np.cumsum([len(row) for row in rows])]), pa.int32())
    return pa.ListArray.from_arrays(boundaries, pa.array(np.concatenate(rows), arrow_type.value_type))


def _offsets(encoding: TextEncoding) -> npt.NDArray[np.int64]:
    """Return begins and ends, [2, token]. Tokens that the tokenizer adds begin and end at 0."""
    return np.array(encoding.offsets, np.int64).reshape(-1, 2).T


def _ids(encoding: TextEncoding) -> Ids:
    return np.array(encoding.ids, np.int32)
