"""Answers as endpoints really give them: each is read, or is a failure that says what came instead."""

import json
import random

import pytest

from assay.inference.endpoint import read_completion
from assay.inference.protocol import Completion, SamplerError


def response(content, reason="stop", **message) -> dict:
    message = {"role": "assistant", "content": content, **message}
    return {"choices": [{"index": 0, "finish_reason": reason, "message": message}]}


def text(value: str) -> dict:
    return {"type": "text", "text": value}


THINKING = {"type": "thinking", "thinking": [text("2+3")]}


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (response("5"), ("5", "stop")),
        (response(""), ("", "stop")),
        (response([THINKING, text("5")]), ("5", "stop")),
        (response([text("fi"), text("ve")]), ("five", "stop")),
        (response(["fi", {"type": "output_text", "text": "ve"}]), ("five", "stop")),
        (response(text("5")), ("5", "stop")),
        (response("5", reasoning_content="2+3"), ("5", "stop")),
        (response("fiv", "length"), ("fiv", "length")),
        (response("fiv", "MAX_TOKENS"), ("fiv", "length")),
        (response("fiv", "model_length"), ("fiv", "length")),
        (response("5", None), ("5", "unknown")),
        (response("half \ud83d"), ("half \ufffd", "stop")),
        (response("\U0001f600"), ("\U0001f600", "stop")),
        ({"choices": [{"text": "5", "finish_reason": "stop"}]}, ("5", "stop")),
    ],
)
def test_a_completion_is_read_in_each_of_its_forms(payload, expected):
    assert read_completion(payload)[:2] == expected


@pytest.mark.parametrize(
    ("payload", "kind", "reason"),
    [
        (response(None, "length", reasoning_content="let me"), "server", "spent before any text"),
        (response("", "length"), "server", "Raise sampling.max_tokens"),
        (response("\n\n", "length", reasoning="hm"), "server", "spent before any text"),
        (response(None, reasoning_content="2+3=5"), "server", "without text"),
        (response("", reasoning_content="2+3=5"), "server", "without text"),
        (response([THINKING]), "server", "without text"),
        (response([]), "server", "without text"),
        (response(None), "server", "without text"),
        (response(None, "content_filter"), "refusal", "filter"),
        (response("I will", "content_filter"), "refusal", "filter"),
        (response("", "SAFETY"), "refusal", "filter"),
        (response("", "RECITATION"), "refusal", "filter"),
        (response("I cannot", "guardrail_intervened"), "refusal", "filter"),
        (response("", "OTHER"), "server", "without text .*other"),
        (response(None, refusal="No."), "refusal", "refused: 'No.'"),
        (response([{"type": "refusal", "refusal": "No."}]), "refusal", "refused: .*'No.'"),
        (response(None, "tool_calls", tool_calls=[{"id": "1"}]), "server", "called tools"),
        (response("", "function_call", function_call={"name": "f"}), "server", "called tools"),
        (response([{"type": "image_url", "image_url": {}}]), "server", "no text"),
        (response([{"type": "text", "text": None}]), "server", "no text"),
        (response(5), "server", "no text"),
        (response("fi", "error"), "server", "broke off"),
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
def test_what_is_no_completion_is_a_failure_with_its_reason(payload, kind, reason):
    with pytest.raises(SamplerError, match=reason) as failed:
        read_completion(payload)
    assert failed.value.kind == kind


@pytest.mark.parametrize("usage", [None, [], {"prompt_tokens": None}, {"prompt_tokens": "3"}])
def test_a_count_of_tokens_that_is_none_loses_no_completion(usage):
    assert read_completion({**response("5"), "usage": usage}) == Completion("5", "stop", 0, 0)


def test_a_value_of_any_type_anywhere_is_no_traceback():
    values = [None, 0, -1, 1.5, True, "", "x", [], [[]], {}, {"type": "text"}, {"text": 3}, [None], [{}]]
    whole = response([THINKING, text("5")], refusal=None, tool_calls=None) | {"usage": {"prompt_tokens": 1}}
    draws = random.Random(1)
    for _ in range(2000):
        payload = json.loads(json.dumps(whole))
        here = payload
        while True:
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            key = draws.choice(keys)
            if not isinstance(here[key], dict | list) or not here[key] or draws.random() < 0.3:
                break
            here = here[key]
        here[key] = draws.choice(values)
        try:
            completion = read_completion(payload)
        except SamplerError:
            continue
        completion.text.encode()
        assert isinstance(completion.finish_reason, str)
