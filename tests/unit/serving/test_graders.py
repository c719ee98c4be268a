"""`client.fine_tuning.alpha.graders`: what a grader gives, and how it can fail, by the API's names."""

import asyncio
import http.server
import json
import threading
import time
from collections.abc import Iterator

import openai
import pytest

from assay.scoring.grade import ItemFailureKind
from assay.serving.api_error import ApiError
from assay.serving.graders import ERROR_OF, GraderService, SampleGrade, parse_grader
from assay.serving.openai.app_state import AppState
from served import app_in, sdk_of

EXACT = {
    "type": "string_check", "name": "exact", "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}", "operation": "eq",
}  # fmt: skip
ERRORS = {
    "formula_parse_error", "sample_parse_error", "truncated_observation_error", "unresponsive_reward_error",
    "invalid_variable_error", "other_error", "python_grader_server_error", "python_grader_server_error_type",
    "python_grader_runtime_error", "python_grader_runtime_error_details", "model_grader_server_error",
    "model_grader_refusal_error", "model_grader_parse_error", "model_grader_server_error_details",
}  # fmt: skip


class Judge(http.server.BaseHTTPRequestHandler):
    """Answers whatever the model's name says."""

    def do_POST(self) -> None:
        requested = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status, message = 200, {"content": requested["model"]}
        if requested["model"] == "down":
            status = 500
        if requested["model"] == "refuses":
            message = {"content": None, "refusal": "no"}
        body = json.dumps({"choices": [{"message": message}]}).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def app(tmp_path_factory) -> Iterator[AppState]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    found = app_in(tmp_path_factory.mktemp("graders"))
    yield found._replace(graders=GraderService(f"http://127.0.0.1:{server.server_address[1]}"))
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def sdk(app) -> openai.OpenAI:
    return sdk_of(app)


def run(sdk: openai.OpenAI, grader: dict, sample: str, item: dict | None = None):
    kwargs = {} if item is None else {"item": item}
    return sdk.fine_tuning.alpha.graders.run(grader=grader, model_sample=sample, **kwargs)


def judge(model: str) -> dict:
    return {
        "type": "score_model", "name": "judge", "model": model, "range": [0, 10],
        "input": [{"role": "user", "content": "Rate {{ sample.output_text }}"}],
    }  # fmt: skip


def multi(formula: str) -> dict:
    other = {**EXACT, "type": "string_check", "name": "holds", "operation": "like"}
    return {
        "type": "multi",
        "name": "pair",
        "graders": {"exact": EXACT, "holds": other},
        "calculate_output": formula,
    }


def test_a_grader_says_its_reward_its_parts_and_no_errors(sdk) -> None:
    response = run(sdk, EXACT, "Paris", {"answer": "Paris"})
    assert (response.reward, response.sub_rewards, response.metadata.scores) == (1.0, {}, {"exact": 1.0})
    assert (response.metadata.name, response.metadata.type) == ("exact", "string_check")
    assert response.metadata.execution_time >= 0
    errors = response.metadata.errors.to_dict()
    assert set(errors) == ERRORS and not any(errors.values())
    assert run(sdk, EXACT, "Rome", {"answer": "Paris"}).reward == 0.0
    pair = run(sdk, multi("0.25 * exact + 0.5 * holds"), "in Paris", {"answer": "Paris"})
    assert (pair.reward, pair.sub_rewards) == (0.5, {"exact": 0.0, "holds": 1.0})
    assert run(sdk, judge('{"result": 7}'), "a").reward == 7.0
    assert run(sdk, judge('{"result": 7}'), "a").metadata.sampled_model_name == '{"result": 7}'


@pytest.mark.parametrize(
    ("grader", "sample", "error"),
    [
        ({**EXACT, "reference": "{{ item.nothing }}"}, "a", "invalid_variable_error"),
        ({**EXACT, "input": "{{ sample.output_json.answer }}"}, "no json", "sample_parse_error"),
        ({**EXACT, "input": "{{ sample.output_json.answer }}"}, '{"other": 1}', "invalid_variable_error"),
        (multi("exact / (holds - holds)"), "a", "formula_parse_error"),
        (judge("no number"), "a", "model_grader_parse_error"),
        (judge("refuses"), "a", "model_grader_refusal_error"),
        (judge("down"), "a", "model_grader_server_error"),
    ],
)
def test_a_grader_that_fails_gives_no_reward_and_one_named_error(sdk, grader, sample, error) -> None:
    response = run(sdk, grader, sample, {"answer": "a"})
    assert response.reward is None
    errors = response.metadata.errors.to_dict()
    assert [name for name, value in errors.items() if value is True] == [error]
    assert response.x_assay["failure"]["text"]
    assert (errors["model_grader_server_error_details"] is not None) == (error == "model_grader_server_error")


@pytest.mark.slow  # a fenced process each
@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("def grade(sample, item): return float(sample['output_text'])", None),
        ("def grade(sample, item): return 1 / 0", "python_grader_runtime_error"),
        ("import os\ndef grade(sample, item): os._exit(3)", "python_grader_server_error"),
        ("def grade(sample, item): return open('/etc/passwd').read()", "python_grader_runtime_error"),
    ],
)
def test_a_python_grader_is_kept_in_and_its_failure_is_named(sdk, source, error) -> None:
    response = run(sdk, {"type": "python", "name": "p", "source": source}, "0.5")
    errors = response.metadata.errors.to_dict()
    assert [name for name, value in errors.items() if value is True] == ([] if error is None else [error])
    assert response.reward == (0.5 if error is None else None)
    assert (errors["python_grader_runtime_error_details"] is not None) == (error == "python_grader_runtime_error")
    assert (errors["python_grader_server_error_type"] is not None) == (error == "python_grader_server_error")


def test_every_failure_of_a_grader_has_a_name_of_the_apis() -> None:
    from typing import get_args

    others = {kind for kind in get_args(ItemFailureKind) if kind not in ERROR_OF}
    assert others == {
        "sampler_timeout", "sampler_server", "sampler_request", "sampler_refusal", "reward_not_finite",
        "sample_error", "unscored", "not_run",
    }  # fmt: skip
    assert set(ERROR_OF.values()) <= ERRORS


@pytest.mark.parametrize(
    ("grader", "param"),
    [
        ({"type": "nothing"}, "grader"),
        ({k: v for k, v in EXACT.items() if k != "operation"}, "grader.operation"),
        ({**EXACT, "operation": "near"}, "grader.operation"),
        ({**EXACT, "more": 1}, "grader.more"),
        ({**EXACT, "input": "{{ nothing.here }}"}, "grader.input"),
        ({**EXACT, "input": "{{ sample.logprobs }}"}, "grader"),
        ({"type": "python", "source": "def grade(:"}, "grader.source"),
        ({"type": "python", "source": "def grade(s, i): return " + "-" * 100_000 + "1"}, "grader.source"),
        ({"type": "python", "source": "def grade(s, i): return s" + ".a" * 100_000}, "grader.source"),
        ({"type": "python", "source": "def grade(s, i): return " + "1+" * 100_000 + "1"}, "grader.source"),
        (multi("exact + nowhere"), "grader"),
    ],
)
def test_what_is_no_grader_is_a_400_that_names_it(sdk, grader, param) -> None:
    for send in (
        lambda: sdk.fine_tuning.alpha.graders.validate(grader=grader),
        lambda: run(sdk, grader, "a"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            send()
        assert (refused.value.code, refused.value.param) == ("invalid_grader", param)
        assert ".." not in refused.value.message


def test_a_grader_is_validated_as_it_was_sent(sdk) -> None:
    assert sdk.fine_tuning.alpha.graders.validate(grader=EXACT).grader.to_dict() == EXACT


def test_a_judge_that_nobody_named_is_a_400(tmp_path) -> None:
    with pytest.raises(openai.BadRequestError, match="--judge URL"):
        run(sdk_of(app_in(tmp_path)), judge("m"), "a")


class ChunkProcessor:
    """Requests side by side, each until it is cancelled."""

    def __init__(self) -> None:
        self.processor = GraderService(None)

    def send(self, grader: dict, project: str = "a") -> "asyncio.Task[SampleGrade]":
        return asyncio.ensure_future(self.processor.run(project, parse_grader(grader), "a", {"answer": "a"}))


def sleeping(seconds: float) -> dict:
    source = f"import time\ndef grade(sample, item):\n  time.sleep({seconds})\n  return 1.0"
    return {"type": "python", "name": "p", "source": source}


def test_graders_that_sleep_keep_neither_other_projects_nor_other_graders_waiting(monkeypatch) -> None:
    monkeypatch.setenv("ASSAY_PYTHON_GRADERS", "trusted")
    monkeypatch.setattr("assay.serving.graders.WAIT_S", 0.2)

    async def scene() -> None:
        processor = ChunkProcessor()
        asleep = [processor.send(sleeping(60.0)) for _ in range(3)]
        with pytest.raises(ApiError, match="2 python graders of this project run") as refused:
            await asleep.pop()
        assert (refused.value.status, refused.value.headers) == (429, {"retry-after": "5"})
        assert (await processor.send(EXACT)).grade.score == 1.0
        assert (await processor.send(sleeping(0.0), "b")).grade.score == 1.0
        for item in asleep:  # as where their clients hang up
            item.cancel()
        await asyncio.wait(asleep)
        assert (await processor.send(sleeping(0.0))).grade.score == 1.0

    began_s = time.monotonic()
    asyncio.run(scene())
    assert time.monotonic() - began_s < 20.0


def test_texts_too_long_to_be_compared_in_the_server_are_refused_quickly(sdk) -> None:
    alike = {**EXACT, "type": "text_similarity", "evaluation_metric": "fuzzy_match"}
    del alike["operation"]
    response = run(sdk, alike, "a" * 100_000, {"answer": "b" * 100_000})
    assert response.reward is None and "too long to compare" in response.x_assay["failure"]["text"]
    assert run(sdk, alike, "a" * 1000, {"answer": "a" * 1000}).reward == 1.0
