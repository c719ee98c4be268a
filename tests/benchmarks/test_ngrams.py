"""The n-grams that language models are held against."""

import numpy as np
import pytest

from ngrams import NGram

VOCABULARY = 6


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_what_may_come_next_adds_up_to_one_after_contexts_seen_and_unseen(order: int) -> None:
    rng = np.random.default_rng(order)
    rows = [rng.integers(0, VOCABULARY - 1, rng.integers(1, 9)).tolist() for _ in range(12)]
    model = NGram(rows, order=order, vocab_size=VOCABULARY)
    for context in ([5, 5, 5, 5], [0, 1, 2, 3], rows[0] + [-1] * 4):
        arguments = tuple(context[: order - 1])
        assert sum(model.probability(token, arguments) for token in range(VOCABULARY)) == pytest.approx(1.0)


def test_a_bigram_by_hand() -> None:
    # Seen once (1, 0) and (0, 2), twice (start, 0) and (0, 1): the discount is 2 / (2 + 2 * 2).
    model = NGram([[0, 1, 0, 2], [0, 1]], order=2, vocab_size=4)
    # Seen in one context 1 and 2, in two 0: the discount is 2 / (2 + 2 * 1).
    below = (1 - 1 / 2) / 4 + (1 / 2 * 3 / 4) / 4
    assert model.probability(1, (0,)) == pytest.approx((2 - 1 / 3) / 3 + (1 / 3 * 2 / 3) * below)


def test_a_longer_context_helps_where_it_decides() -> None:
    rows = [[0, 1, 2], [3, 1, 4]] * 20
    short, long = (NGram(rows, order=order, vocab_size=5) for order in (2, 3))
    assert long.nats([0, 1, 2])[-1] < 0.1 < 0.6 < short.nats([0, 1, 2])[-1]
