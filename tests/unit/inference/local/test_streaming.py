import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from assay.data.dataset.tokens import train_tokenizer
from assay.inference.local.streaming import TokenStreamer, TokenTexts, mean_state, scored
from assay.inference.protocol import CompletionChunk, TokenLogprob
from assay.inference.rollout import Rollout
from tiny_causal import new_causal_network

TEXTS = ["the cat sat on the mat", "grüße aus München ☃ 🙂🙂", "stop it. STOP! end of it"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, vocab_size=300)


def notified(tokenizer: Tokenizer, choices: list[list[int]], *, reasons=None, **inputs) -> list[CompletionChunk]:
    """What is told while these choices are drawn side by side."""
    pieces: list[CompletionChunk] = []
    streamer = TokenStreamer(pieces.append, tokenizer, ends=[1], **inputs)
    entries = tokenizer.get_vocab_size()
    for position in range(max(map(len, choices))):
        rows = [index if position < len(choice) else -1 for index, choice in enumerate(choices)]
        sampled = [choice[position] if position < len(choice) else 0 for choice in choices]
        logits = torch.sin(torch.arange(len(choices) * entries, dtype=torch.float32)).view(len(choices), -1)
        streamer.drew(np.array(rows), logits, torch.tensor(sampled))
        for index, choice in enumerate(choices):
            if len(choice) == position + 1:
                reason = (reasons or ["length"] * len(choices))[index]
                streamer.ended(index, Rollout(np.array(choice), np.zeros(len(choice), np.float32), reason))
    return pieces


def texts_of_tokens(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    return [TokenTexts(tokenizer).of(token)[0] for token in tokens]


def texts_of(pieces: list[CompletionChunk], num_choices: int) -> list[str]:
    return ["".join(piece.text for piece in pieces if piece.choice == index) for index in range(num_choices)]


@settings(max_examples=60, deadline=None)
@given(
    choices=st.lists(st.lists(st.integers(2, 299), min_size=1, max_size=24), min_size=1, max_size=3),
    stop=st.lists(st.sampled_from(["at", "☃ ", "🙂🙂", "the cat", " "]), max_size=2),
)
def test_pieces_are_together_what_is_told_at_the_end(tokenizer, choices, stop):
    known = [[token % tokenizer.get_vocab_size() for token in choice] for choice in choices]
    known = [[token if token > 1 else 2 for token in choice] for choice in known]
    whole = notified(tokenizer, known, stop=stop)
    assert len(whole) == len(known)
    streamed = notified(tokenizer, known, stop=stop, is_streamed=True)
    assert texts_of(streamed, len(known)) == texts_of(whole, len(known))
    for index, choice in enumerate(known):
        text = tokenizer.decode(choice)
        cut = min((position for item in stop if (position := text.find(item)) >= 0), default=None)
        assert texts_of(whole, len(known))[index] == text[:cut]
        assert sum(item.num_tokens for item in streamed if item.choice == index) == len(choice)
        assert [item.reason for item in streamed if item.choice == index and item.reason] == ["length"]


def test_half_a_character_and_what_may_begin_a_stop_string_wait(tokenizer):
    tokens = tokenizer.encode("a🙂b STO", add_special_tokens=False).ids
    pieces = notified(tokenizer, [tokens], stop=["STOP!"], is_streamed=True)
    assert all("\ufffd" not in piece.text for piece in pieces)
    assert "".join(piece.text for piece in pieces[:-1]) == "a🙂b "
    assert pieces[-1].text == "STO" and pieces[-1].reason == "length"


def test_the_token_that_ends_a_choice_is_seen_and_not_spelled(tokenizer):
    tokens = [*tokenizer.encode("the cat", add_special_tokens=False).ids, 1]
    (piece,) = notified(tokenizer, [tokens], reasons=["stop"], top_logprobs=2)
    assert (piece.text, piece.reason) == ("the cat", "stop")
    assert [token.text for token in piece.tokens] == texts_of_tokens(tokenizer, tokens)
    assert [token.is_end for token in piece.tokens] == [False] * (len(tokens) - 1) + [True]


def test_log_probabilities_are_those_of_the_whole_distribution_whatever_streams(tokenizer):
    tokens = tokenizer.encode("the mat", add_special_tokens=False).ids
    entries = tokenizer.get_vocab_size()
    logits = torch.sin(torch.arange(2 * entries, dtype=torch.float32)).view(2, -1).log_softmax(-1)
    for is_streamed in (False, True):
        pieces = notified(tokenizer, [[5], tokens], top_logprobs=3, is_streamed=is_streamed)
        seen = [token for piece in pieces if piece.choice == 1 for token in piece.tokens]
        assert [item.text for item in seen] == texts_of_tokens(tokenizer, tokens)
        assert [item.logprob for item in seen] == [float(logits[1, token]) for token in tokens]
        best = logits[1].topk(3)
        assert [other.text for other in seen[0].top_logprobs] == texts_of_tokens(tokenizer, best.indices.tolist())
        assert [other.logprob for other in seen[0].top_logprobs] == best.values.tolist()
    assert all(item.tokens == () for item in notified(tokenizer, [tokens]))
    (plain,) = notified(tokenizer, [tokens], top_logprobs=0)
    assert plain.tokens[0].top_logprobs == () and plain.tokens[0].logprob == float(logits[0, tokens[0]])


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return new_causal_network(vocab_size=50, hidden_size=16, num_layers=2, num_heads=2, max_tokens=32).eval()


class Numbers(TokenTexts):
    """Names tokens by their numbers."""

    def __init__(self) -> None:
        self.of = lambda token: (str(token), None)


def test_given_tokens_are_as_likely_as_the_networks_own_logits_say(network):
    tokens = [3, 9, 9, 40, 2]
    with torch.no_grad():
        logprobs = network(torch.tensor([tokens])).logits[0].log_softmax(-1)
    found = scored(network, tokens, Numbers(), top_logprobs=2)
    assert found[0] == TokenLogprob(text="3", text_bytes=None, logprob=None)
    for position, seen in enumerate(found[1:], 1):
        assert seen.logprob == pytest.approx(float(logprobs[position - 1, tokens[position]]), abs=1e-6)
        assert seen.top_logprobs[0].text == str(int(logprobs[position - 1].argmax()))
        assert len(seen.top_logprobs) == 2
    assert [item.logprob for item in scored(network, [7], Numbers())] == [None]


def test_a_text_as_a_vector_is_the_mean_of_its_last_states(network):
    with torch.no_grad():
        states = network.transformer(torch.tensor([[3, 9, 2]])).last_hidden_state[0]
    assert mean_state(network, [3, 9, 2]) == pytest.approx(states.double().mean(0).tolist(), abs=1e-7)


@settings(max_examples=40, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_the_bytes_of_tokens_are_together_those_of_the_text(tokenizer, text):
    texts = TokenTexts(tokenizer)
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    assert b"".join(texts.of(token)[1] or b"" for token in tokens) == text.encode()
    for token in tokens:
        own, own_bytes = texts.of(token)
        if "bytes:" not in own:
            assert own.encode() == own_bytes


def test_no_two_tokens_of_a_vocabulary_are_spelled_alike(tokenizer):
    texts = TokenTexts(tokenizer)
    detokenized = [texts.of(token)[0] for token in range(tokenizer.get_vocab_size())]
    assert len(set(detokenized)) == len(detokenized)
    assert detokenized[:2] == ["[PAD]", "[CLS]"] and texts.of(9999)[0] == ""
    assert texts.of(tokenizer.token_to_id("Ã"))[0] == r"bytes:\xc3"
