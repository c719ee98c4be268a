import asyncio
import base64
import json
import struct

import openai
import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from assay.inference.protocol import GenerateRequest, ScoreRequest
from assay.serving.engines.pool import EnginePool
from assay.serving.openai.inference import engine_access as asking
from parrot_engine import ParrotEngine
from served import app_in, http_of

HELLO = [{"role": "user", "content": "hello my friend"}]


class Parrots:
    """A server whose only base model, `tiny`, is a parrot."""

    def __init__(self, folder, **kind) -> None:
        self.engines: list[ParrotEngine] = []

        async def begin() -> ParrotEngine:
            self.engines.append(ParrotEngine(**kind))
            return self.engines[-1]

        app = app_in(folder)._replace(engines=EnginePool(begin, max_models=1))
        # Entered, all requests have one event loop, as a server has.
        self.http: TestClient = http_of(app).__enter__()
        self.sdk = openai.OpenAI(base_url="http://localhost/v1", api_key="any", http_client=self.http, max_retries=0)

    def end(self) -> None:
        self.http.__exit__(None, None, None)

    @property
    def requested(self):
        return next(engine for engine in self.engines if engine.source).requests[-1]


@pytest.fixture(scope="module")
def parrots(tmp_path_factory):
    found = Parrots(tmp_path_factory.mktemp("parrots"))
    yield found
    found.end()


@pytest.fixture
def parrots_of(tmp_path):
    """Servers of models of other kinds."""
    started = []

    def begin(**kind) -> Parrots:
        started.append(Parrots(tmp_path / str(len(started)), **kind))
        return started[-1]

    yield begin
    for item in started:
        item.end()


def test_a_chat_is_answered_as_the_sdk_has_it(parrots):
    reply = parrots.sdk.chat.completions.create(model="tiny", messages=HELLO)
    (choice,) = reply.choices
    assert (choice.message.content, choice.message.role) == (" HELLO MY FRIEND", "assistant")
    assert (choice.finish_reason, choice.logprobs) == ("stop", None)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (3, 4, 7)
    assert reply.id.startswith("chatcmpl-") and reply.system_fingerprint == "fp_dddddddddddd"
    assert reply.created == 1_800_000_000


def test_what_is_asked_reaches_the_engine(parrots):
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    parrots.sdk.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": parts}], n=3, seed=5, temperature=0.5, top_p=0.9,
        stop=["x", "y"], max_completion_tokens=7, logprobs=True, top_logprobs=2,
    )  # fmt: skip
    requested = parrots.requested
    assert isinstance(requested, GenerateRequest)
    assert requested.prompts[0].messages == ({"role": "user", "content": "a b"},)
    params = requested.params
    output = (requested.n, params.seed, params.temperature, params.top_p, params.stop, params.max_tokens)
    assert output == (3, 5, 0.5, 0.9, ("x", "y"), 7)
    assert (requested.top_logprobs, requested.is_streamed) == (2, False)
    parrots.sdk.chat.completions.create(model="tiny", messages=HELLO, max_tokens=3, stop="x")
    requested = parrots.requested
    params = requested.params
    assert (params.max_tokens, params.stop, requested.top_logprobs, params.seed) == (3, ("x",), None, None)
    assert not requested.may_shorten


def test_log_probabilities_are_of_the_text_and_not_of_its_end(parrots):
    reply = parrots.sdk.chat.completions.create(model="tiny", messages=HELLO, logprobs=True, top_logprobs=1)
    content = reply.choices[0].logprobs.content
    assert [item.token for item in content] == [" HELLO", " MY", " FRIEND"]
    assert content[0].logprob == -0.5 and bytes(content[0].bytes) == b" HELLO"
    assert [(logprob.token, logprob.logprob) for logprob in content[0].top_logprobs] == [("?", -0.25)]


def test_a_stream_says_what_the_whole_answer_says(parrots):
    kwargs = {"model": "tiny", "messages": HELLO, "n": 2, "logprobs": True, "top_logprobs": 1}
    whole = parrots.sdk.chat.completions.create(**kwargs)
    chunks = [*parrots.sdk.chat.completions.create(**kwargs, stream=True, stream_options={"include_usage": True})]
    usage = chunks.pop()
    assert usage.choices == [] and usage.usage == whole.usage
    assert all(chunk.usage is None and chunk.id == chunks[0].id for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    for choice in whole.choices:
        own = [choice_ for chunk in chunks for choice_ in chunk.choices if choice_.index == choice.index]
        assert "".join(item.delta.content for item in own) == choice.message.content
        assert [token for item in own if item.logprobs for token in item.logprobs.content] == (choice.logprobs.content)
        assert [item.finish_reason for item in own] == [None] * (len(own) - 1) + [choice.finish_reason]
        assert len(own) > 2
    plain = [*parrots.sdk.chat.completions.create(model="tiny", messages=HELLO, stream=True)]
    assert plain[-1].choices[0].finish_reason == "stop" and "usage" not in plain[0].model_fields_set


def test_the_sdks_own_reader_of_streams_is_content(parrots):
    with parrots.sdk.chat.completions.stream(model="tiny", messages=HELLO) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == " HELLO MY FRIEND"


def test_a_text_is_gone_on_with(parrots):
    reply = parrots.sdk.completions.create(model="tiny", prompt=["a b", "c"], n=2)
    assert [choice.text for choice in reply.choices] == [" A B", " A B", " C", " C"]
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert reply.usage.prompt_tokens == 3 and reply.choices[0].logprobs is None
    assert parrots.requested.params.max_tokens == 16


def test_benchmarks_find_every_token_of_the_prompt_and_exactly_those_that_were_drawn(parrots):
    reply = parrots.sdk.completions.create(
        model="tiny", prompt=[[7, 8, 9]], echo=True, logprobs=1, max_tokens=1, temperature=0, seed=1234
    )
    found = reply.choices[0].logprobs
    assert found.tokens == ["7", "8", "9", " 7", " 8", " 9", "<end>"]
    assert found.token_logprobs == [None, *[-0.5] * 6]
    assert found.top_logprobs == [None, {"?": -0.25, "8": -0.5}, {"?": -0.25, "9": -0.5}] + [
        {"?": -0.25, token: -0.5} for token in found.tokens[3:]
    ]
    assert found.text_offset == [0, 1, 2, 3, 5, 7, 9]
    assert reply.choices[0].text == "7 8 9 7 8 9"


def test_no_token_may_be_asked_for_where_only_the_prompt_counts(parrots):
    reply = parrots.sdk.completions.create(model="tiny", prompt="a b", echo=True, logprobs=0, max_tokens=0)
    assert isinstance(parrots.engines[0].requests[-2], ScoreRequest)
    (choice,) = reply.choices
    assert (choice.text, choice.finish_reason, choice.logprobs.tokens) == ("a b", "length", ["a", "b"])
    assert choice.logprobs.top_logprobs is None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (2, 0)


def test_a_stream_of_texts_says_what_the_whole_answer_says(parrots):
    for more in ({}, {"logprobs": 1, "echo": True}, {"logprobs": 1}, {"echo": True, "max_tokens": 0}):
        kwargs = {"model": "tiny", "prompt": ["a b", "c"], "n": 2, **more}
        whole = parrots.sdk.completions.create(**kwargs)
        stream = [*parrots.sdk.completions.create(**kwargs, stream=True, stream_options={"include_usage": True})]
        assert stream.pop().usage == whole.usage
        for choice in whole.choices:
            own = [choice_ for chunk in stream for choice_ in chunk.choices if choice_.index == choice.index]
            assert "".join(item.text for item in own) == choice.text, more
            assert own[-1].finish_reason == choice.finish_reason
            if choice.logprobs is not None:
                for name in ("tokens", "token_logprobs", "top_logprobs"):
                    parts = [part for item in own for part in getattr(item.logprobs, name)]
                    assert parts == getattr(choice.logprobs, name)


def test_one_model_has_an_address_of_its_own_and_its_tokenizer_beside_it(parrots):
    sdk = parrots.sdk.with_options(base_url="http://localhost/v1/x/models/tiny/v1")
    assert sdk.completions.create(model="tiny", prompt="a").choices[0].text == " A"
    assert sdk.chat.completions.create(model="tiny", messages=HELLO).choices[0].finish_reason == "stop"
    with pytest.raises(openai.BadRequestError, match="The URL names model 'tiny'"):
        sdk.completions.create(model="other", prompt="a")
    at = "/v1/x/models/tiny"
    output = parrots.http.post(f"{at}/tokenize", json={"prompt": "a b c", "add_special_tokens": False}).json()
    assert (output["tokens"], output["count"], output["max_model_len"]) == ([0, 1, 2], 3, 64)
    assert parrots.http.post(f"{at}/detokenize", json={"tokens": [4, 5]}).json() == {"prompt": "4 5"}
    info = parrots.http.get(f"{at}/tokenizer_info").json()
    assert (info["eos_token"], info["bos_token"], info["chat_template"]) == ("<end>", None, "{{ messages }}")


def refused(parrots: Parrots, path: str, **body) -> tuple[int, str, str]:
    reply = parrots.http.post(f"/v1{path}", json={"model": "tiny", **body})
    error = reply.json()["error"]
    assert error["message"]
    return reply.status_code, error["param"], error["code"]


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"frequency_penalty": 0.5}, "frequency_penalty", "parameter_not_honoured"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "parameter_not_honoured"),
        ({"tools": [{"type": "function"}]}, "tools", "parameter_not_honoured"),
        ({"response_format": {"type": "json_object"}}, "response_format", "parameter_not_honoured"),
        ({"store": True}, "store", "parameter_not_honoured"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "parameter_not_honoured"),
        ({"top_k": 4}, "top_k", "unknown_parameter"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": True}, "n", "invalid_value"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
        ({"max_completion_tokens": 3, "max_tokens": 3}, "max_tokens", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "invalid_value"),
        ({"stop": [""]}, "stop", "invalid_value"),
        ({"stop": ["x"] * 17}, "stop", "invalid_value"),
        (
            {"stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "invalid_value",
        ),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "hello"}, "messages", "invalid_value"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "missing_required_parameter"),
        (
            {"messages": [{"role": "user", "content": "x", "name": "Bo"}]},
            "messages.0.name",
            "unknown_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
            "messages.0",
            "invalid_value",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "messages.0",
            "invalid_value",
        ),
    ],
)
def test_what_a_chat_asks_and_is_not_honoured_is_named(parrots, changes, param, code):
    assert refused(parrots, "/chat/completions", **{"messages": HELLO, **changes}) == (400, param, code)


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"suffix": "x"}, "suffix", "parameter_not_honoured"),
        ({"best_of": 3}, "best_of", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": 5}, "prompt", "invalid_value"),
        ({"logprobs": 21}, "logprobs", "invalid_value"),
        ({"max_tokens": -1}, "max_tokens", "invalid_value"),
        ({"messages": HELLO}, "messages", "unknown_parameter"),
    ],
)
def test_likewise_of_a_completion(parrots, changes, param, code):
    assert refused(parrots, "/completions", **{"prompt": "a", **changes}) == (400, param, code)


def test_what_changes_nothing_may_be_given(parrots):
    parrots.sdk.chat.completions.create(
        model="tiny", user="me", metadata={"a": "b"}, service_tier="auto", store=False, frequency_penalty=0,
        response_format={"type": "text"}, tools=[],
        messages=[*HELLO, {"role": "assistant", "content": "yes", "refusal": None, "annotations": []}],
    )  # fmt: skip


def test_a_model_that_is_not_there_is_not_found_anywhere(parrots):
    for path, body in (
        ("/chat/completions", {"messages": HELLO}),
        ("/chat/completions", {"messages": HELLO, "stream": True}),
        ("/completions", {"prompt": "a"}),
        ("/embeddings", {"input": "a"}),
        ("/decisions", {"input": "a", "questions": [{"type": "score", "instructions": ""}]}),
        ("/x/models/no/v1/completions", {"prompt": "a"}),
    ):
        reply = parrots.http.post(f"/v1{path}", json={"model": "no", **body})
        assert reply.status_code == 404, path
        assert reply.json()["error"]["code"] == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        parrots.sdk.chat.completions.create(model="ft:tiny:default::" + "0" * 24, messages=HELLO)


def test_an_engine_that_dies_is_told_and_the_next_request_has_another(parrots_of):
    parrots = parrots_of()
    chats = parrots.sdk.chat.completions
    chats.create(model="tiny", messages=HELLO)
    parrots.engines[0].dies_after = 2
    output = []
    with pytest.raises(openai.APIError, match="The process of this model died"):
        for chunk in chats.create(model="tiny", messages=HELLO, stream=True):
            output += [choice.delta.content for choice in chunk.choices]
    assert output == ["", " HELLO"]
    assert chats.create(model="tiny", messages=HELLO).choices
    next(engine for engine in parrots.engines if engine.source and not engine.is_over).dies_after = 0
    with pytest.raises(openai.InternalServerError) as died:
        chats.create(model="tiny", messages=HELLO)
    assert (died.value.status_code, died.value.code) == (503, "engine_died")
    assert died.value.response.headers["retry-after"] == "1"
    assert chats.create(model="tiny", messages=HELLO).choices


def test_a_client_that_reads_slowly_holds_no_engine_and_only_for_so_long_what_was_drawn(monkeypatch):
    async def read(read_s: float) -> list[bytes]:
        monkeypatch.setattr(asking, "SLOW_READER_S", read_s)
        is_drawn = asyncio.Event()

        async def events():
            for number in range(9):
                yield b"%d" % number
            is_drawn.set()

        response = await asking.stream_response(Request({"type": "http"}, asyncio.Event().wait), events())
        found = [await anext(response.body_iterator), await anext(response.body_iterator)]
        await asyncio.wait_for(is_drawn.wait(), 5.0)  # though the client reads no further
        await asyncio.sleep(0.02)
        return found + [item async for item in response.body_iterator]

    assert asyncio.run(read(60.0)) == [b"%d" % number for number in range(9)]
    cut = asyncio.run(read(0.01))
    assert cut[:2] == [b"0", b"1"] and len(cut) == 3 and b"answer_too_long" in cut[2]


def decided(sdk: openai.OpenAI, **question):
    return sdk.decisions.create(model="tiny", input="a text", questions=[{"instructions": "", **question}])


def test_a_classifier_of_one_thing_decides_it(parrots_of):
    parrots = parrots_of(kind="classifier", is_predicate=True)
    reply = decided(parrots.sdk, type="predicate", name="spam")
    assert (reply.answers[0].type, reply.answers[0].name) == ("predicate", "spam")
    assert reply.answers[0].probability == 0.75 and reply.usage.input_tokens == 4
    choices = [{"value": False}, {"value": True}]
    (choice,) = decided(parrots.sdk, type="choice", choices=choices).answers
    assert (choice.choice, choice.confidence) == (True, 0.75)
    assert [(probability.value, probability.probability) for probability in choice.probabilities] == [
        (False, 0.25),
        (True, 0.75),
    ]
    send = {"input": "x"}
    for part, param in (
        ({"type": "score", "instructions": ""}, "questions.0.type"),
        ({"type": "predicate", "instructions": "is it spam?"}, "questions.0.instructions"),
        ({"type": "predicate", "instructions": "", "choices": choices}, "questions.0.choices"),
        ({"type": "choice", "instructions": "", "choices": [{"value": "yes"}]}, "questions.0.choices"),
        (
            {"type": "choice", "instructions": "", "choices": [{"value": True, "description": "d"}]},
            "questions.0.choices.0.description",
        ),
    ):
        found = refused(parrots, "/decisions", **send, questions=[part])
        assert found[:2] == (400, param), found
    assert refused(parrots, "/decisions", **send, questions=[])[:2] == (400, "questions")


def test_a_classifier_of_classes_chooses_and_a_reward_model_scores(parrots_of):
    classes = parrots_of(kind="classifier", classes=("a", "b"))
    (choice,) = decided(classes.sdk, type="choice", choices=[{"value": "b"}, {"value": "a"}]).answers
    assert (choice.choice, choice.confidence) == ("b", 0.75)
    assert [probability.value for probability in choice.probabilities] == ["b", "a"]
    rewards = parrots_of(kind="reward_model")
    (score,) = decided(rewards.sdk, type="score", levels=[]).answers
    assert (score.score, score.confidence, score.probabilities) == (1.5, None, [])
    conversation = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x y"}]}]
    question = [{"type": "score", "instructions": "", "levels": []}]
    rewards.sdk.decisions.create(model="tiny", input=conversation, questions=question)
    assert rewards.requested.prompts[0].messages == ({"role": "user", "content": "x y"},)


def test_who_asks_a_model_otherwise_is_shown_the_question_that_it_answers(parrots_of):
    for question, kind in (
        (
            {"type": "choice", "instructions": "", "choices": [{"value": "a"}, {"value": "b"}]},
            {"classes": ("a", "b")},
        ),
        ({"type": "predicate", "instructions": ""}, {"is_predicate": True}),
        ({"type": "score", "instructions": ""}, {}),
    ):
        parrots = parrots_of(kind="classifier", **kind)
        wrong = "predicate" if question["type"] != "predicate" else "score"
        with pytest.raises(openai.BadRequestError) as error:
            decided(parrots.sdk, type=wrong)
        shown = json.loads(error.value.body["message"].partition(" Send ")[2].removesuffix("."))
        assert shown == question
        parrots.sdk.decisions.create(model="tiny", input="a text", questions=[shown])
    many = parrots_of(kind="classifier", classes=tuple(f"c{number}" for number in range(22)))
    with pytest.raises(openai.BadRequestError, match=r'"c19"}, and 2 more\]'):
        decided(many.sdk, type="predicate")


def test_texts_are_vectors_in_either_form(parrots):
    sdk = parrots.sdk
    assert [item.embedding for item in sdk.embeddings.create(model="tiny", input=["a b", "c"]).data] == [
        [0.5, 2.0],
        [0.5, 1.0],
    ]
    plain = sdk.embeddings.create(model="tiny", input=[[1, 2, 3]], encoding_format="float")
    assert plain.data[0].embedding == [0.5, 3.0] and plain.usage.total_tokens == 3
    raw = parrots.http.post("/v1/embeddings", json={"model": "tiny", "input": "a", "encoding_format": "base64"}).json()
    assert struct.unpack("<2f", base64.b64decode(raw["data"][0]["embedding"])) == (0.5, 1.0)
    assert refused(parrots, "/embeddings", input="a", dimensions=3)[:2] == (400, "dimensions")
    sdk.embeddings.create(model="tiny", input="a", dimensions=2)
