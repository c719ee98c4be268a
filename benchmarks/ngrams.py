"""How likely rows of tokens are to an interpolated n-gram: what a language model must at least have learned.

Kneser-Ney (Kneser & Ney 1995) in its interpolated form (Chen & Goodman 1999), one discount for each order,
n1 / (n1 + 2 n2). Orders below the highest count in how many contexts a token was seen, not how often; below all
of them, every token is as likely as any other.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

BEFORE = -1
"""Stands before a row's first token, as often as a context is long."""

Context = tuple[int, ...]


class NGram:
    """Counted on some rows."""

    def __init__(self, rows: Sequence[Sequence[int]], *, order: int, vocab_size: int) -> None:
        self._order, self._vocab_size = order, vocab_size
        counts: Counter[Context] = Counter()
        for row in rows:
            padded = [*[BEFORE] * (order - 1), *row]
            counts.update(
                tuple(padded[location - order + 1 : location + 1]) for location in range(order - 1, len(padded))
            )
        self._orders: list[_Order] = []
        for _ in range(order):
            self._orders.append(_Order(counts))
            counts = Counter(gram[1:] for gram in counts)  # in how many contexts, from here on

    def probability(self, token: int, context: Context) -> float:
        """Of a token after the `order - 1` tokens of its context."""
        share, probability = 1.0, 0.0
        for number, order in enumerate(self._orders):
            seen, left = order.share(token, context[number:])
            probability += share * seen
            share *= left
        return probability + share / self._vocab_size

    def nats(self, row: Sequence[int]) -> npt.NDArray[np.float64]:
        """-log p of each token of a row but the first."""
        padded = [*[BEFORE] * (self._order - 1), *row]
        ends = range(self._order, len(padded))
        chances = [self.probability(padded[end], tuple(padded[end - self._order + 1 : end])) for end in ends]
        surprise: npt.NDArray[np.float64] = -np.log(np.array(chances))
        return surprise


class _Order:
    """What follows contexts of one length."""

    def __init__(self, counts: Counter[Context]) -> None:
        once, twice = (sum(count == times for count in counts.values()) for times in (1, 2))
        self._discount = once / (once + 2 * twice) if once else 0.5
        self._counts = dict(counts)
        self._totals: defaultdict[Context, int] = defaultdict(int)
        self._kinds: Counter[Context] = Counter()
        for gram, count in counts.items():
            self._totals[gram[:-1]] += count
            self._kinds[gram[:-1]] += 1

    def share(self, token: int, context: Context) -> tuple[float, float]:
        """What the token has here, and what shorter contexts may still give away."""
        total = self._totals.get(context, 0)
        if not total:
            return 0.0, 1.0
        seen = max(self._counts.get((*context, token), 0) - self._discount, 0.0)
        return seen / total, self._discount * self._kinds[context] / total
