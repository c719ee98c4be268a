"""Answers as endpoints really give them: each is read, or is a failure that says what came instead."""

import json
import random

import pytest

from assay.scoring.chat_completion import read_completion
from assay.scoring.sampler import Completion, SamplerError


def answer(content, reason="stop", **message) -> dict:
    message = {"role": "assistant", "content": content, **message}
    return {"choices": [{"index": 0, "finish_reason": reason, "message": message}]}


def text(value: str) -> dict:
    return {"type": "text", "text": value}


THINKING = {"type": "thinking", "thinking": [text("2+3")]}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (answer("5"), ("5", "stop")),
        (answer(""), ("", "stop")),
        (answer([THINKING, text("5")]), ("5", "stop")),
        (answer([text("fi"), text("ve")]), ("five", "stop")),
        (answer(["fi", {"type": "output_text", "text": "ve"}]), ("five", "stop")),
        (answer(text("5")), ("5", "stop")),
        (answer("5", reasoning_content="2+3"), ("5", "stop")),
        (answer("fiv", "length"), ("fiv", "length")),
        (answer("fiv", "MAX_TOKENS"), ("fiv", "length")),
        (answer("fiv", "model_length"), ("fiv", "length")),
        (answer("5", None), ("5", "unknown")),
        (answer("half \ud83d"), ("half \ufffd", "stop")),
        (answer("\U0001f600"), ("\U0001f600", "stop")),
        ({"choices": [{"text": "5", "finish_reason": "stop"}]}, ("5", "stop")),
    ],
)
def test_a_completion_is_read_in_each_of_its_forms(given, expected):
    assert read_completion(given)[:2] == expected


@pytest.mark.parametrize(
    ("given", "kind", "reason"),
    [
        (answer(None, "length", reasoning_content="let me"), "server", "spent before any text"),
        (answer("", "length"), "server", "Raise sampling.max_tokens"),
        (answer("\n\n", "length", reasoning="hm"), "server", "spent before any text"),
        (answer(None, reasoning_content="2+3=5"), "server", "without text"),
        (answer("", reasoning_content="2+3=5"), "server", "without text"),
        (answer([THINKING]), "server", "without text"),
        (answer([]), "server", "without text"),
        (answer(None), "server", "without text"),
        (answer(None, "content_filter"), "refusal", "filter"),
        (answer("I will", "content_filter"), "refusal", "filter"),
        (answer("", "SAFETY"), "refusal", "filter"),
        (answer("", "RECITATION"), "refusal", "filter"),
        (answer("I cannot", "guardrail_intervened"), "refusal", "filter"),
        (answer("", "OTHER"), "server", "without text .*other"),
        (answer(None, refusal="No."), "refusal", "refused: 'No.'"),
        (answer([{"type": "refusal", "refusal": "No."}]), "refusal", "refused: .*'No.'"),
        (answer(None, "tool_calls", tool_calls=[{"id": "1"}]), "server", "called tools"),
        (answer("", "function_call", function_call={"name": "f"}), "server", "called tools"),
        (answer([{"type": "image_url", "image_url": {}}]), "server", "no text"),
        (answer([{"type": "text", "text": None}]), "server", "no text"),
        (answer(5), "server", "no text"),
        (answer("fi", "error"), "server", "broke off"),
        ({"error": {"message": "overloaded", "code": 502}}, "server", "overloaded"),
        ({"choices": [{"error": {"message": "lost"}, "message": {"content": ""}}]}, "server", "lost"),
        ({"choices": []}, "server", "not a chat completion"),
        ({}, "server", "not a chat completion"),
        ({"choices": [{"delta": {"content": "5"}}]}, "server", "not a chat completion"),
        ([], "server", "not a chat completion"),
        (None, "server", "not a chat completion"),
        ("5", "server", "not a chat completion"),
    ],
)
def test_what_is_no_completion_is_a_failure_with_its_reason(given, kind, reason):
    with pytest.raises(SamplerError, match=reason) as failed:
        read_completion(given)
    assert failed.value.kind == kind


@pytest.mark.parametrize("usage", [None, [], {"prompt_tokens": None}, {"prompt_tokens": "3"}])
def test_a_count_of_tokens_that_is_none_loses_no_completion(usage):
    assert read_completion({**answer("5"), "usage": usage}) == Completion("5", "stop", 0, 0)


def test_a_value_of_any_type_anywhere_is_no_traceback():
    values = [None, 0, -1, 1.5, True, "", "x", [], [[]], {}, {"type": "text"}, {"text": 3}, [None], [{}]]
    whole = answer([THINKING, text("5")], refusal=None, tool_calls=None) | {"usage": {"prompt_tokens": 1}}
    draws = random.Random(1)
    for _ in range(2000):
        given = json.loads(json.dumps(whole))
        here = given
        while True:
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            key = draws.choice(keys)
            if not isinstance(here[key], dict | list) or not here[key] or draws.random() < 0.3:
                break
            here = here[key]
        here[key] = draws.choice(values)
        try:
            completion = read_completion(given)
        except SamplerError:
            continue
        completion.text.encode()
        assert isinstance(completion.finish_reason, str)
