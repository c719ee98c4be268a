"""End of completions: end tokens, and stop strings.

A stop string may begin in one token and end in another. For each token of the vocabulary it is precomputed
whether a stop string can end inside it; only rows that sampled such a token are detokenized.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from functools import reduce

import numpy as np
from tokenizers import Tokenizer

from assay.base.shapes import Bool, Int64
from assay.data.dataset.checkpoint_tokens import num_token_ids, special_token_ids

UNFINISHED = "\ufffd"
"""A decoded character with missing bytes."""


class CompletionText:
    """Detokenizes completions without special tokens, end token and stop string.

    A stop string that names special tokens is searched for in the text with them: it matches only whole special tokens.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], ends: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._ends = frozenset(ends)
        special = special_token_ids(tokenizer)
        self._special = frozenset(special.values())
        self._special_stops = [stop for stop in stops if any(token in stop for token in special)]
        without = [reduce(lambda text, token: text.replace(token, ""), special, stop) for stop in stops]
        of_all = {stop[:length] for stop in (*stops, *without) for length in range(1, len(stop) + 1)}
        self._beginnings = of_all - set(stops)

    def of(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(tokens[:-1] if tokens and tokens[-1] in self._ends else tokens)
        return text[: self._stop_index(tokens, text)]

    def is_stopped(self, tokens: Sequence[int]) -> bool:
        return self._stop_index(tokens, self._tokenizer.decode(tokens)) is not None

    def stable_prefix(self, text: str) -> str:
        """Return the prefix of an unfinished completion that later tokens cannot change."""
        text = text.rstrip(UNFINISHED)
        held = max((len(beginning) for beginning in self._beginnings if text.endswith(beginning)), default=0)
        return text[: len(text) - held]

    def _stop_index(self, tokens: Sequence[int], text: str) -> int | None:
        """Return where the first stop string begins in the text without special tokens."""
        found = [index for stop in self._stops if (index := text.find(stop)) >= 0]
        return min([*found, *self._special_stop_index(tokens)], default=None)

    def _special_stop_index(self, tokens: Sequence[int]) -> Iterator[int]:
        """Yield the same for the first stop string with special tokens."""
        if not self._special_stops:
            return
        whole = self._tokenizer.decode(tokens, skip_special_tokens=False)
        matches = sorted(
            (match.start(), match.start() + len(stop))
            for stop in self._special_stops
            for match in re.finditer(f"(?={re.escape(stop)})", whole)
        )
        if not matches:
            return
        counts = range(len(tokens) + 1)
        bounds = [len(self._tokenizer.decode(tokens[:n], skip_special_tokens=False)) for n in counts]
        special = [bounds[index : index + 2] for index, token in enumerate(tokens) if token in self._special]
        for begin, end in matches:
            touched = [(left, right) for left, right in special if left < end and right > begin]
            if touched and all(begin <= left and right <= end for left, right in touched):
                before = max(n for n in counts if bounds[n] <= begin)
                yield len(self._tokenizer.decode(tokens[:before])) + begin - bounds[before]
                return


class Ends:
    """The ends of a completion before `max_tokens`: end tokens and stop strings."""

    def __init__(
        self, ends: Collection[int], vocab_size: int, *, stops: Sequence[str] = (), tokenizer: Tokenizer | None = None
    ) -> None:
        self.is_end: Bool[np.ndarray, "entry"] = np.zeros(vocab_size, np.bool_)
        self.is_end[[token for token in ends if token < vocab_size]] = True
        self.may_complete: Bool[np.ndarray, "entry"] = np.zeros(vocab_size, np.bool_)
        """Tokens that may complete a stop string."""
        self._text: CompletionText | None = None
        if stops:
            assert tokenizer is not None, "stop strings need the tokenizer"
            self._text = CompletionText(tokenizer, stops)
            self._find_completing(stops, tokenizer)

    def stop_lengths(
        self,
        tokens: Int64[np.ndarray, "slot token"],
        rows: Int64[np.ndarray, "row"],
        begin: Int64[np.ndarray, "row"],
        end: Int64[np.ndarray, "row"],
    ) -> Int64[np.ndarray, "row"]:
        """Return the length at which each completion's first stop string is complete, or 0.

        `rows` are completions of `tokens` with `end` tokens, of which `begin` were searched before. Only the few with
        a token that may complete a stop string are detokenized.
        """
        found = np.zeros(len(rows), np.int64)
        if self._text is None or not len(rows):
            return found
        columns = begin[:, None] + np.arange(max(1, int((end - begin).max())))
        newest = tokens[rows[:, None], np.minimum(columns, tokens.shape[1] - 1)]
        is_sought = self.may_complete[newest] & ~self.is_end[newest] & (columns < end[:, None])
        for row, column in np.argwhere(is_sought).tolist():
            length = int(begin[row]) + column + 1
            if not found[row] and self.is_stopped(tokens[rows[row], :length]):
                found[row] = length
        return found

    def is_stopped(self, tokens: Int64[np.ndarray, "token"]) -> bool:
        """Return whether the completion holds a stop string."""
        return self._text is not None and self._text.is_stopped(tokens.tolist())

    def _find_completing(self, stops: Sequence[str], tokenizer: Tokenizer) -> None:
        # After another token: some tokenizers omit the space before a text's first word.
        before = tokenizer.encode("a", add_special_tokens=False).ids
        known = min(len(self.may_complete), num_token_ids(tokenizer))
        detokenized = tokenizer.decode_batch([[*before, token] for token in range(known)], skip_special_tokens=False)
        start = tokenizer.decode(before, skip_special_tokens=False)
        for token, text in enumerate(detokenized):
            own = text.removeprefix(start)
            self.may_complete[token] = not text.startswith(start) or any(_ends_inside(stop, own) for stop in stops)


def _ends_inside(stop: str, text: str) -> bool:
    """Return whether a stop string can end inside this text."""
    beginnings = (text[:length] for length in range(1, min(len(text), len(stop)) + 1))
    return stop in text or UNFINISHED in text or any(map(stop.endswith, beginnings))
