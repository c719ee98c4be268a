import math

import pytest
import torch

from assay.data.dataset.formats.template import ChatTemplate
from assay.inference.local.generator import BatchInvariance
from assay.inference.local.local_model import LocalModel
from assay.inference.protocol import (
    CompletionChunk,
    Embedded,
    EmbedRequest,
    GenerateRequest,
    Message,
    PromptInput,
    PromptsRead,
    SamplingParams,
    Scored,
    ScoreRequest,
    Tokenized,
    TokenizeRequest,
)
from assay.inference.rollout import GenerationCancelledError
from assay.workers.engine.language import LanguageEngine
from assay.workers.engine.requests import RequestRejectedError

TEXT = PromptInput(text="return a")


@pytest.fixture
def engine(tiny_model: LocalModel) -> LanguageEngine:
    return LanguageEngine(tiny_model, "d" * 64)


def output(engine: LanguageEngine, send, is_stopping=lambda: False) -> list:
    found: list = []
    engine.handle(send, found.append, is_stopping)
    return found


def pieces_of(engine: LanguageEngine, send) -> list[CompletionChunk]:
    return [item for item in output(engine, send) if isinstance(item, CompletionChunk)]


def test_it_says_what_it_is(engine, tiny_model):
    ready = engine.ready
    assert (ready.kind, ready.window_tokens, ready.digest) == ("language_model", 16, "d" * 64)
    assert (ready.start_token, ready.end_token, ready.template) == ("[CLS]", "[CLS]", None)
    assert ready.resident_bytes > 1 << 20


def test_a_prompt_is_as_likely_as_the_model_in_process_finds_it(engine, tiny_model):
    (found,) = output(engine, ScoreRequest(prompts=(TEXT,), top_logprobs=1))
    assert isinstance(found, Scored)
    nats = [-bit * math.log(2) for bit in tiny_model.text_bits("return a").bits.tolist()]
    assert [prompt.logprob for prompt in found.prompts[0]] == pytest.approx(nats, abs=1e-4)
    tokens = tuple(tiny_model.tokens_of("return a", has_start=False))
    (bare,) = output(engine, ScoreRequest(prompts=(PromptInput(tokens=tokens),)))
    assert bare.prompts[0][0].logprob is None and len(bare.prompts[0]) == len(tokens)
    assert "".join(prompt.text for prompt in found.prompts[0]) == "return a"


def test_a_completion_is_the_one_that_the_model_in_process_draws(engine, tiny_model):
    messages = [Message(role="user", content="def")]
    for seed in range(4):
        sampling = SamplingParams(temperature=1.0, max_tokens=8, seed=seed, stop=("x",))
        (expected,) = tiny_model.generate([messages], sampling)
        prompt = PromptInput(messages=tuple(messages))
        for is_streamed in (False, True):
            send = GenerateRequest(prompts=(prompt,), params=sampling, n=2, is_streamed=is_streamed)
            found = pieces_of(engine, send)
            own = [item for item in found if item.choice == 0]
            assert "".join(item.text for item in own) == expected.text
            assert own[-1].reason == expected.finish_reason
            assert sum(item.num_tokens for item in own) == expected.completion_tokens
            assert {item.choice for item in found} == {0, 1}


def test_what_is_drawn_is_as_likely_as_when_it_is_given(engine, tiny_model):
    send = GenerateRequest(prompts=(TEXT,), params=SamplingParams(seed=3, max_tokens=6), top_logprobs=2)
    (started, piece) = output(engine, send)
    assert isinstance(started, PromptsRead)
    (rollout,) = (item for item in [piece])
    prompt = tiny_model.tokens_of("return a")
    sampled = [tiny_model.tokenizer.token_to_id(name) for name in _names(tiny_model, rollout)]
    (kwargs,) = output(engine, ScoreRequest(prompts=(PromptInput(tokens=(*prompt, *sampled)),), top_logprobs=1))
    again = [prompt_.logprob for prompt_ in kwargs.prompts[0][len(prompt) :]]
    assert [token.logprob for token in piece.tokens] == pytest.approx(again, abs=1e-4)
    for token in piece.tokens:  # greedy: of what is likeliest, the very float
        assert token.logprob == max(other.logprob for other in token.top_logprobs) and len(token.top_logprobs) == 2


def _names(model: LocalModel, piece: CompletionChunk) -> list[str]:
    texts = {}
    for number in range(model.tokenizer.get_vocab_size()):
        name = model.tokenizer.id_to_token(number)
        texts[model.tokenizer.decode([number], skip_special_tokens=False)] = name
    return [texts[token.text] for token in piece.tokens]


def test_different_choices_are_drawn_and_without_a_seed_others_each_time(engine):
    send = GenerateRequest(prompts=(TEXT,), params=SamplingParams(temperature=1.0, max_tokens=8), n=4)
    first = [piece.text for piece in sorted(pieces_of(engine, send), key=lambda item: item.choice)]
    assert len(set(first)) > 1
    assert first != [piece.text for piece in sorted(pieces_of(engine, send), key=lambda item: item.choice)]


def test_prompts_that_decode_apart_are_told_of_by_their_own_numbers(engine, tiny_model):
    send = GenerateRequest(
        prompts=(TEXT, PromptInput(text="def")), n=2, params=SamplingParams(temperature=1.0, seed=1, max_tokens=6)
    )
    found = {}
    for batch_invariance in BatchInvariance:
        tiny_model._generator._batch_invariance[torch.float32] = batch_invariance
        found[batch_invariance] = {piece.choice: piece.text for piece in pieces_of(engine, send)}
    first = found[BatchInvariance.ANY_SIZE]
    assert all(item == first for item in found.values()) and sorted(first) == [0, 1, 2, 3]


def test_a_stop_between_tokens_gives_the_whole_up(engine):
    found: list = []
    send = GenerateRequest(
        prompts=(TEXT,), n=2, params=SamplingParams(temperature=1.0, max_tokens=8, seed=0), is_streamed=True
    )
    with pytest.raises(GenerationCancelledError):
        engine.handle(send, found.append, lambda: len(found) > 3)
    assert 3 < len(found) < 9


@pytest.mark.parametrize(
    ("send", "code", "words"),
    [
        (
            GenerateRequest(prompts=(PromptInput(text="a b " * 9),), params=SamplingParams(max_tokens=1)),
            "context_length_exceeded",
            "16",
        ),
        (
            GenerateRequest(prompts=(TEXT,), params=SamplingParams(max_tokens=16)),
            "context_length_exceeded",
            "limit is 16",
        ),
        (ScoreRequest(prompts=(PromptInput(text="a b " * 9),)), "context_length_exceeded", "limit is 16"),
        (EmbedRequest(prompts=(PromptInput(text="a b " * 9),)), "context_length_exceeded", "limit is 16"),
        (
            GenerateRequest(prompts=(PromptInput(tokens=(5, 320)),), params=SamplingParams()),
            "invalid_value",
            "320 is not a token",
        ),
        (ScoreRequest(prompts=(PromptInput(tokens=(-1,)),)), "invalid_value", "-1 is not a token"),
        (ScoreRequest(prompts=(PromptInput(tokens=()),)), "invalid_value", "empty prompt"),
        (TokenizeRequest(tokens=(320,)), "invalid_value", "320 is not a token"),
        (
            GenerateRequest(prompts=(PromptInput(text="a [PAD] b"),), params=SamplingParams()),
            "invalid_value",
            r"contains \[PAD\].*token ids",
        ),
        (ScoreRequest(of="text", prompts=(TEXT,)), "model_cannot", "does not classify"),
    ],
)
def test_what_it_cannot_be_asked_is_named(engine, send, code, words):
    with pytest.raises(RequestRejectedError, match=words) as refused:
        output(engine, send)
    assert refused.value.code == code


def test_control_tokens_of_a_text_that_is_spelled_are_tokens(engine):
    (tokenized,) = output(engine, TokenizeRequest(text="[CLS]a", has_start=False))
    assert tokenized.tokens[0] == 1 and len(tokenized.tokens) == 2


def test_as_many_tokens_as_there_is_room_for_where_nobody_says(engine, tiny_model):
    (_, piece) = output(
        engine, GenerateRequest(prompts=(TEXT,), params=SamplingParams(seed=1, max_tokens=1024), may_shorten=True)
    )
    reserve = 16 - len(tiny_model.tokens_of("return a"))
    assert piece.num_tokens == reserve or piece.reason == "stop"


def test_texts_are_spelled_and_vectors_have_the_models_width(engine, tiny_model):
    (found,) = output(engine, TokenizeRequest(text="return a", has_start=True))
    assert isinstance(found, Tokenized) and list(found.tokens) == tiny_model.tokens_of("return a")
    (back,) = output(engine, TokenizeRequest(tokens=found.tokens))
    assert back.text == "[CLS]return a"
    (vectors,) = output(engine, EmbedRequest(prompts=(TEXT, PromptInput(tokens=(5, 6)))))
    assert isinstance(vectors, Embedded) and [len(vector) for vector in vectors.vectors] == [16, 16]
    assert vectors.num_tokens == len(found.tokens) + 2


def test_messages_that_the_template_leaves_out_are_refused_by_their_name(tiny_causal):
    template = ChatTemplate("{{ messages[-1].content }}", {}, where="mine")
    engine = LanguageEngine(LocalModel(tiny_causal, name="tiny", template=template), "d" * 64)
    messages = (Message(role="system", content="Be brief."), Message(role="user", content="def"))
    with pytest.raises(RequestRejectedError, match=r"message 1: .* leaves out.* 'Be brief.'") as refused:
        output(engine, GenerateRequest(prompts=(PromptInput(messages=messages),), params=SamplingParams(max_tokens=2)))
    assert (refused.value.code, refused.value.param) == ("invalid_value", "messages")
