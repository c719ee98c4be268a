"""Stop strings across the borders of tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.data.dataset.tokens import train_tokenizer
from assay.inference.local.stop_tokens import CompletionText, Ends

TEXTS = ["def add(a, b):\n    return a + b\n", "schließen ✓ — λ\n\n", "the end. The end"] * 4
TOKENIZER = train_tokenizer(TEXTS, vocab_size=340)
PIECES = st.text("de f\nreturn a+b✓ß.Th", max_size=12)


@given(text=st.lists(st.sampled_from(TEXTS) | PIECES, max_size=4).map("".join), stop=PIECES.filter(bool))
def test_a_token_that_completes_a_stop_string_is_known_to_be_able_to(text, stop):
    stops = Ends((), TOKENIZER.get_vocab_size(), stops=(stop,), tokenizer=TOKENIZER)
    ids = np.array(TOKENIZER.encode(text, add_special_tokens=False).ids, np.int64)
    for count in range(1, len(ids) + 1):
        if stops.is_stopped(ids[:count]) and not stops.is_stopped(ids[: count - 1]):
            assert stops.may_complete[ids[count - 1]]


def test_few_tokens_can_complete_a_rare_stop_string():
    stops = Ends((), 400, stops=("\n\n",), tokenizer=TOKENIZER)
    newline = TOKENIZER.encode("\n", add_special_tokens=False).ids[0]
    letter = TOKENIZER.encode("h", add_special_tokens=False).ids[0]
    assert stops.may_complete[newline]
    assert not stops.may_complete[letter]
    assert not stops.may_complete[TOKENIZER.get_vocab_size() :].any()


CONTROL = ("<|end|>", "<|turn|>")
WITH_CONTROL = train_tokenizer(TEXTS, vocab_size=340, special=CONTROL)
WORDS = st.lists(st.sampled_from([*CONTROL, "def", "a", " ", "✓", "<|", "end", "|>", "The end"]), max_size=8)


def ids_of(text: str) -> list[int]:
    ids: list[int] = WITH_CONTROL.encode(text, add_special_tokens=False).ids
    return ids


def test_a_stop_string_that_is_a_special_token_stops_where_the_token_is_drawn():
    stops = Ends((), WITH_CONTROL.get_vocab_size(), stops=("<|end|>",), tokenizer=WITH_CONTROL)
    ids = np.array(ids_of("a def<|end|>"), np.int64)
    assert stops.may_complete[ids[-1]] and stops.is_stopped(ids) and not stops.is_stopped(ids[:-1])
    assert CompletionText(WITH_CONTROL, ("<|end|>",)).of(ids.tolist()) == "a def"


@pytest.mark.parametrize(
    ("stop", "text", "expected"),
    [
        ("def<|end|>", "a def<|end|>", "a "),
        ("<|end|>\n\n", "a<|end|>\n\nb", "a"),
        ("f<|end|>a<|turn|>", "def<|end|>a<|turn|>", "de"),
        ("<|end|>", "a<|turn|>b<|end|>c", "ab"),  # special tokens before it are left out as ever
        ("<|", "a<|end|>b", "ab"),  # a part of a token's name is no text
        ("end|>", "a<|end|>b", "ab"),
        ("<|end|>a<|", "b<|end|>a<|turn|>", "ba"),
        ("ab", "a<|end|>b", ""),  # readers see these side by side
    ],
)
def test_a_stop_string_may_hold_special_tokens_whole_and_never_a_part_of_one(stop, text, expected):
    completion = CompletionText(WITH_CONTROL, (stop,))
    assert completion.of(ids_of(text)) == expected
    assert completion.is_stopped(ids_of(text)) == (expected != WITH_CONTROL.decode(ids_of(text)))


def test_a_special_token_that_was_written_as_text_stops_as_well():
    detokenized = [token for piece in ("<|", "end", "|>") for token in ids_of(piece)]
    assert CompletionText(WITH_CONTROL, ("<|end|>",)).of([*ids_of("a "), *detokenized]) == "a "


@given(words=WORDS, stop=WORDS.map("".join).filter(bool))
def test_what_is_settled_stays_and_the_stopping_token_is_known_beforehand(words, stop):
    ids, completion = [token for word in words for token in ids_of(word)], CompletionText(WITH_CONTROL, (stop,))
    may_complete = Ends((), WITH_CONTROL.get_vocab_size(), stops=(stop,), tokenizer=WITH_CONTROL).may_complete
    count = next((n for n in range(1, len(ids) + 1) if completion.is_stopped(ids[:n])), len(ids))
    if completion.is_stopped(ids[:count]):
        assert may_complete[ids[count - 1]]
    whole = completion.of(ids[:count])
    assert all(whole.startswith(completion.stable_prefix(completion.of(ids[:n]))) for n in range(count))
