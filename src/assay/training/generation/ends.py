"""What ends a completion: a token, or a text that it comes to hold.

A stop string may begin in one token and end in another. Of every token of the vocabulary it is known beforehand
whether a stop string can end inside it; only rows that drew such a token are spelled out.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np
from tokenizers import Tokenizer

from assay.base.shapes import Bool, Int64

_UNFINISHED = "\ufffd"
"""How a character looks of which some bytes are in another token."""


class StopStrings:
    """The texts that end a completion."""

    def __init__(self, stops: Sequence[str], tokenizer: Tokenizer, vocab_size: int) -> None:
        self._stops = tuple(stops)
        self._tokenizer = tokenizer
        self.may_complete: Bool[np.ndarray, "entry"] = np.zeros(vocab_size, np.bool_)
        # Behind another token: the first word of a text has no space before it in some tokenizers.
        before = tokenizer.encode("a", add_special_tokens=False).ids
        known = min(vocab_size, tokenizer.get_vocab_size())
        spelled = tokenizer.decode_batch([[*before, token] for token in range(known)])
        start = tokenizer.decode(before)
        for token, text in enumerate(spelled):
            own = text.removeprefix(start)
            self.may_complete[token] = not text.startswith(start) or any(
                _ends_inside(stop, own) for stop in self._stops
            )

    def completed(self, tokens: Int64[np.ndarray, "token"]) -> bool:
        """Whether the completion holds a stop string."""
        text = self._tokenizer.decode(tokens.tolist())
        return any(stop in text for stop in self._stops)


def _ends_inside(stop: str, text: str) -> bool:
    """Whether a stop string can have its end in this piece of a text."""
    beginnings = (text[:length] for length in range(1, min(len(text), len(stop)) + 1))
    return stop in text or _UNFINISHED in text or any(map(stop.endswith, beginnings))


class Ends:
    """What ends a completion before `max_tokens`."""

    def __init__(self, ends: Collection[int], vocab_size: int, strings: StopStrings | None = None) -> None:
        self._is_end = np.zeros(vocab_size, np.bool_)
        self._is_end[[token for token in ends if token < vocab_size]] = True
        self._strings = strings

    def of(
        self,
        newest: Int64[np.ndarray, "row"],
        completion: Callable[[int], Int64[np.ndarray, "token"]],
    ) -> Bool[np.ndarray, "row"]:
        """Which rows are at their end; `completion` gives the tokens of a row, for the few that are spelled."""
        found: Bool[np.ndarray, "row"] = self._is_end[newest]
        if self._strings is not None:
            for row in np.flatnonzero(self._strings.may_complete[newest] & ~found).tolist():
                found[row] = self._strings.completed(completion(row))
        return found
