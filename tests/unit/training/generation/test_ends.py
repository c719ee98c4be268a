"""Stop strings across the borders of tokens."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from assay.data.dataset.tokens import train_tokenizer
from assay.training.generation.ends import StopStrings

TEXTS = ["def add(a, b):\n    return a + b\n", "schließen ✓ — λ\n\n", "the end. The end"] * 4
TOKENIZER = train_tokenizer(TEXTS, vocab_size=340)
PIECES = st.text("de f\nreturn a+b✓ß.Th", max_size=12)


@given(text=st.lists(st.sampled_from(TEXTS) | PIECES, max_size=4).map("".join), stop=PIECES.filter(bool))
def test_a_token_that_completes_a_stop_string_is_known_to_be_able_to(text, stop):
    stops = StopStrings((stop,), TOKENIZER, TOKENIZER.get_vocab_size())
    ids = np.array(TOKENIZER.encode(text, add_special_tokens=False).ids, np.int64)
    for count in range(1, len(ids) + 1):
        if stops.completed(ids[:count]) and not stops.completed(ids[: count - 1]):
            assert stops.may_complete[ids[count - 1]]


def test_few_tokens_can_complete_a_rare_stop_string():
    stops = StopStrings(("\n\n",), TOKENIZER, 400)
    newline = TOKENIZER.encode("\n", add_special_tokens=False).ids[0]
    letter = TOKENIZER.encode("h", add_special_tokens=False).ids[0]
    assert stops.may_complete[newline]
    assert not stops.may_complete[letter]
    assert not stops.may_complete[TOKENIZER.get_vocab_size() :].any()
