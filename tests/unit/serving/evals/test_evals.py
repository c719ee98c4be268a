"""`client.evals`: what is judged and by what, runs over samples that are given or asked for, items' results."""

import json
from typing import Any

import openai
import pytest

from assay.serving.api_error import ApiError
from assay.serving.ids import checkpoint_name
from assay.serving.openai.app_state import AppState
from assay.workers.batch.models import ModelNotLoadedError
from parrot_models import ParrotModels, work, worker_of
from served import app_in, http_of, opening, sdk_of
from unit.serving.test_jobs import LAUNCHED, PLANNED, VALIDATED, checkpoint, create, happens

SCHEMA = {
    "type": "object",
    "properties": {"question": {"type": "string"}, "answer": {"type": "string"}},
    "required": ["question", "answer"],
}
EXACT = {
    "type": "string_check", "name": "exact", "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}", "operation": "eq",
}  # fmt: skip
CLOSE = {
    "type": "text_similarity", "name": "close", "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}", "evaluation_metric": "fuzzy_match", "pass_threshold": 0.8,
}  # fmt: skip
MODEL_GRADED = {
    "type": "label_model", "name": "model_graded", "model": "tiny", "labels": ["good", "bad"],
    "passing_labels": ["good"], "input": [{"role": "user", "content": "{{ sample.output_text }}"}],
}  # fmt: skip
GENERATED = {"type": "template", "template": [{"role": "user", "content": "{{ item.question }}"}]}


@pytest.fixture
def app(tmp_path) -> AppState:
    return app_in(tmp_path, method="supervised")


@pytest.fixture(scope="module")
def refusing(tmp_path_factory) -> AppState:
    """A server in which nothing comes to be."""
    return app_in(tmp_path_factory.mktemp("refusing"), method="supervised")


@pytest.fixture
def sdk(app) -> openai.OpenAI:
    return sdk_of(app)


def config(schema: dict[str, Any] = SCHEMA, **kwargs: Any) -> dict[str, Any]:
    return {"type": "custom", "item_schema": schema, "include_sample_schema": True, **kwargs}


def created(sdk: openai.OpenAI, *criteria: dict[str, Any], **kwargs: Any):
    return sdk.evals.create(data_source_config=config(), testing_criteria=[*criteria] or [EXACT], name="e", **kwargs)


def item(question: str, response: str) -> dict[str, str]:
    return {"question": question, "answer": response}


def kwargs(*pairs: tuple[str, str]) -> dict[str, Any]:
    """Rows whose samples are there: what was said, what was right."""
    rows = [{"item": item("?", right), "sample": {"output_text": messages}} for messages, right in pairs]
    return {"type": "jsonl", "source": {"type": "file_content", "content": rows}}


def requested(*items: dict[str, str], **params: Any) -> dict[str, Any]:
    rows = {"type": "file_content", "content": [{"item": item} for item in items]}
    return {"type": "completions", "model": "tiny", "source": rows, "input_messages": GENERATED, **params}


def run_of(sdk: openai.OpenAI, source: dict[str, Any], *criteria: dict[str, Any]):
    evaluation = created(sdk, *criteria)
    return sdk.evals.runs.create(evaluation.id, data_source=source, name="r")


def items_of(sdk: openai.OpenAI, run: Any, **kwargs: Any) -> list[Any]:
    return [*sdk.evals.runs.output_items.list(run.id, eval_id=run.eval_id, **kwargs)]


def test_an_eval_is_what_was_asked_for_and_is_called_otherwise_later(sdk):
    evaluation = created(sdk, EXACT, CLOSE, metadata={"a": "b"})
    assert evaluation.to_dict() == sdk.evals.retrieve(evaluation.id).to_dict()
    assert (evaluation.name, evaluation.metadata, evaluation.object) == ("e", {"a": "b"}, "eval")
    schema = evaluation.data_source_config.schema_
    assert schema["properties"]["item"] == SCHEMA and "sample" in schema["properties"]
    assert [criterion.name for criterion in evaluation.testing_criteria] == ["exact", "close"]
    assert sdk.evals.update(evaluation.id, name="f").metadata == {"a": "b"}
    assert sdk.evals.update(evaluation.id, metadata={"c": "d"}).name == "f"
    assert sdk.evals.retrieve(evaluation.id).metadata == {"c": "d"}


def test_evals_are_listed_and_go(app, sdk):
    evals = []
    for _ in range(3):
        evals.append(created(sdk).id)
        app.clock.sleep_s(1)
    assert [eval.id for eval in sdk.evals.list(limit=2)] == evals
    assert [eval.id for eval in sdk.evals.list(limit=1, order="desc", order_by="created_at")] == evals[::-1]
    gone = sdk.evals.delete(evals[1])
    assert (gone.deleted, gone.eval_id) == (True, evals[1])
    assert [eval.id for eval in sdk.evals.list()] == [evals[0], evals[2]]
    with pytest.raises(openai.NotFoundError):
        sdk.evals.retrieve(evals[1])


def test_samples_that_are_given_are_graded_by_every_criterion(app, sdk):
    pairs = [("yes", "yes"), ("yess!", "yesss!"), ("no", "yes"), ("a", "a"), ("b", "b")]
    run = run_of(sdk, kwargs(*pairs), EXACT, CLOSE)
    assert (run.status, run.result_counts.total, run.model) == ("queued", 0, "")
    work(worker_of(app, at_once=2))
    run = sdk.evals.runs.retrieve(run.id, eval_id=run.eval_id)
    counts = run.result_counts
    assert (run.status, counts.total) == ("completed", 5)
    assert (counts.passed, counts.failed, counts.errored) == (3, 2, 0)
    by_name = {result.testing_criteria: (result.passed, result.failed) for result in run.per_testing_criteria_results}
    assert by_name == {"exact": (3, 2), "close": (4, 1)}
    assert run.per_model_usage == [] and run.error is None

    items = items_of(sdk, run, limit=2)
    assert [item.datasource_item_id for item in items] == [0, 1, 2, 3, 4]
    assert [item.status for item in items] == ["pass", "fail", "fail", "pass", "pass"]
    assert items[2].datasource_item == item("?", "yes") and items[2].sample.output[0].content == "no"
    assert [(result.name, result.passed, result.score) for result in items[1].results[:1]] == [("exact", False, 0.0)]
    assert [item_.datasource_item_id for item_ in items_of(sdk, run, order="desc", limit=2)] == [4, 3, 2, 1, 0]
    assert [item_.datasource_item_id for item_ in items_of(sdk, run, status="fail", limit=1)] == [1, 2]
    assert [item_.datasource_item_id for item_ in items_of(sdk, run, status="pass")] == [0, 3, 4]
    one = sdk.evals.runs.output_items.retrieve(items[3].id, eval_id=run.eval_id, run_id=run.id)
    assert one.to_dict() == items[3].to_dict()


def test_a_report_has_the_counts_and_what_did_not_pass(app, sdk):
    run = run_of(sdk, kwargs(("yes", "yes"), ("<b>|no", "yes")))
    work(worker_of(app))
    address = run.report_url.removeprefix("http://localhost")
    response = http_of(app).get(address)
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/markdown")
    assert "| all, of 2 items | 1 | 1 | 0 |" in response.text
    assert "| 1 | fail | \\<b\\>\\|no | exact: 0 |" in response.text


def test_a_model_is_asked_by_a_template_and_what_it_took_is_counted(app, sdk):
    source = requested(item("hello my friend", "HELLO MY FRIEND"), item("a", "B"), sampling_params={
        "seed": 7, "temperature": 0, "max_completion_tokens": 9, "tools": [],
    })  # fmt: skip
    run = run_of(sdk, source)
    models = ParrotModels()
    work(worker_of(app, models))
    run = sdk.evals.runs.retrieve(run.id, eval_id=run.eval_id)
    assert (run.result_counts.passed, run.result_counts.failed, run.model) == (1, 1, "tiny")
    (usage,) = run.per_model_usage
    assert (usage.model_name, usage.invocation_count, usage.prompt_tokens) == ("tiny", 2, 4)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    (send,) = models.engine.requests  # one for both
    params = send.params
    assert (params.seed, params.temperature, params.max_tokens, len(send.prompts)) == (7, 0, 9, 2)
    first = items_of(sdk, run)[0].sample
    assert first.input[0].content == "hello my friend" and first.output[0].content == " HELLO MY FRIEND"
    assert (first.seed, first.finish_reason, first.usage.prompt_tokens, first.error) == (7, "stop", 3, None)


def test_a_conversation_may_stand_in_the_item(app, sdk):
    schema = {"type": "object", "properties": {"input": {}, "answer": {"type": "string"}}}
    evaluation = sdk.evals.create(data_source_config=config(schema), testing_criteria=[EXACT])
    talk = [{"role": "system", "content": "be"}, {"role": "user", "content": "good"}]
    rows = [{"item": {"input": talk, "answer": "BE GOOD"}}, {"item": {"input": "x", "answer": ""}}]
    source = {
        "type": "completions", "model": "tiny", "source": {"type": "file_content", "content": rows},
        "input_messages": {"type": "item_reference", "item_reference": "item.input"},
    }  # fmt: skip
    run = sdk.evals.runs.create(evaluation.id, data_source=source)
    work(worker_of(app))
    passed, errored = items_of(sdk, run)
    assert (passed.status, errored.status) == ("pass", "error")
    assert errored.sample.error.code == "invalid_messages" and errored.results[0].score is None


def test_a_judge_that_says_no_label_is_an_error_of_its_item_by_the_apis_name(app, sdk):
    run = run_of(sdk, kwargs(("yes", "yes"), ("no", "yes")), EXACT, MODEL_GRADED)
    work(worker_of(app))
    run = sdk.evals.runs.retrieve(run.id, eval_id=run.eval_id)
    assert (run.result_counts.errored, run.result_counts.passed) == (2, 0)
    (found, _) = items_of(sdk, run)
    exact, model_graded = found.results
    assert (exact.passed, model_graded.passed, model_graded.score) == (True, False, None)
    assert model_graded.x_assay["error"]["code"] == "model_grader_parse_error"
    assert [item.model_name for item in run.per_model_usage] == ["tiny"]
    assert run.per_model_usage[0].invocation_count == 2
    assert len(items_of(sdk, run, status="fail")) == 2


def test_a_python_criterion_that_throws_fails_for_its_item(app, sdk, monkeypatch):
    monkeypatch.setenv("ASSAY_PYTHON_GRADERS", "trusted")
    source = "def grade(sample, item):\n    return 1 / (sample['output_text'] == item['answer'])"
    run = run_of(sdk, kwargs(("yes", "yes"), ("no", "yes")), {"type": "python", "name": "py", "source": source})
    work(worker_of(app))
    passed, errored = items_of(sdk, run)
    assert (passed.status, passed.results[0].score, errored.status) == ("pass", 1.0, "error")
    assert errored.results[0].x_assay["error"]["code"] == "python_grader_runtime_error"


def test_what_a_model_refuses_fails_item_by_item_and_one_that_is_gone_fails_the_run(app, sdk):
    models = ParrotModels()
    models.refuses = ApiError("too long", code="context_length_exceeded")
    run = run_of(sdk, requested(item("a", "A")))
    work(worker_of(app, models))
    (errored,) = items_of(sdk, run)
    assert errored.sample.error.code == "sampler_request" and "too long" in errored.sample.error.message
    models.refuses = ModelNotLoadedError(ApiError("its files are gone", code="model_not_usable"))
    run = run_of(sdk, requested(item("a", "A")))
    work(worker_of(app, models))
    run = sdk.evals.runs.retrieve(run.id, eval_id=run.eval_id)
    assert (run.status, run.error.code, run.error.message) == (
        "failed",
        "model_not_usable",
        "its files are gone",
    )


ROWS = [
    b'{"item": {"question": "a", "answer": "A"}, "sample": {"choices": [{"message": {"content": "A"}}]}}',
    b"",
    b"{broken",
    b'{"item": {"question": "a"}, "sample": {"output_text": "A"}}',
    b'{"item": {"question": "a", "answer": "A"}}',
    b'{"item": {"question": "a", "answer": "A"}, "sample": {"text": "A"}}',
    b'{"item": {"question": "a", "answer": "A"}, "smaple": {}}',
]


def test_a_file_is_read_and_each_fault_has_its_line(app, sdk):
    good = sdk.files.create(file=("f", b"\xef\xbb\xbf" + ROWS[0] + b"\r\n" + ROWS[0]), purpose="evals")
    run = run_of(sdk, {"type": "jsonl", "source": {"type": "file_id", "id": good.id}})
    work(worker_of(app))
    assert [item.status for item in items_of(sdk, run)] == ["pass", "pass"]
    bad = sdk.files.create(file=("f", b"\n".join(ROWS)), purpose="evals")
    run = run_of(sdk, {"type": "jsonl", "source": {"type": "file_id", "id": bad.id}})
    work(worker_of(app))
    run = sdk.evals.runs.retrieve(run.id, eval_id=run.eval_id)
    assert (run.status, run.error.code) == ("failed", "invalid_data_source")
    messages = run.error.message
    assert messages.startswith(f"Invalid file {bad.id}: 5 lines cannot be used: line 3: not JSON")
    for words in (
        "line 4: item does not fit item_schema: 'answer' is a required property",
        "line 5: it has no 'sample', but the criteria read one",
        "line 6: 'sample' has neither 'output_text' nor 'choices[0].message.content'",
        "line 7: unknown key 'smaple'",
    ):
        assert words in messages


def test_a_file_that_is_deleted_before_it_was_graded_fails_the_run(app, sdk):
    file = sdk.files.create(file=("f", ROWS[0]), purpose="evals")
    run = run_of(sdk, {"type": "jsonl", "source": {"type": "file_id", "id": file.id}})
    sdk.files.delete(file.id)
    work(worker_of(app))
    assert sdk.evals.runs.retrieve(run.id, eval_id=run.eval_id).error.code == "file_not_found"


@pytest.mark.parametrize("path", ["/cancel", ""])
def test_a_run_is_cancelled_and_keeps_what_was_graded(app, sdk, path):
    run = run_of(sdk, kwargs(*[("a", "a")] * 5))
    worker = worker_of(app, at_once=2)
    worker.poll(), worker.poll()  # read, and one chunk
    response = http_of(app).post(f"/v1/evals/{run.eval_id}/runs/{run.id}{path}")
    assert response.json()["status"] == "canceled"
    work(worker)
    run = sdk.evals.runs.cancel(run.id, eval_id=run.eval_id)  # again
    assert (run.status, run.result_counts.passed, run.result_counts.total) == ("canceled", 2, 5)
    assert len(items_of(sdk, run)) == 2
    done = run_of(sdk, kwargs(("a", "a")))
    work(worker)
    with pytest.raises(openai.BadRequestError, match="is completed: it cannot be cancelled"):
        sdk.evals.runs.cancel(done.id, eval_id=done.eval_id)


def test_runs_are_listed_by_status_and_go_with_their_results(app, sdk):
    evaluation = created(sdk)
    runs = []
    for _ in range(3):
        runs.append(sdk.evals.runs.create(evaluation.id, data_source=kwargs(("a", "a"))))
        app.clock.sleep_s(1)
    run_of(sdk, kwargs(("a", "a")))  # another eval's
    sdk.evals.runs.cancel(runs[1].id, eval_id=evaluation.id)
    work(worker_of(app))
    listed = [*sdk.evals.runs.list(evaluation.id, limit=2)]
    assert [(item.id, item.status) for item in listed] == [
        (runs[0].id, "completed"), (runs[1].id, "canceled"), (runs[2].id, "completed"),
    ]  # fmt: skip
    assert [run.id for run in sdk.evals.runs.list(evaluation.id, status="canceled")] == [runs[1].id]
    gone = sdk.evals.runs.delete(runs[0].id, eval_id=evaluation.id)
    assert (gone.deleted, gone.run_id) == (True, runs[0].id)
    with pytest.raises(openai.NotFoundError):
        sdk.evals.runs.retrieve(runs[0].id, eval_id=evaluation.id)
    store = app.jobs.store
    work(worker_of(app))
    assert [*store.list(f"evalrun/{runs[0].id}/items/")] == [] != [*store.list(f"evalrun/{runs[2].id}/items/")]
    assert [*store.list("open/evalrun/")] == []


def test_the_runs_of_an_eval_that_is_deleted_are_graded_no_further(app, sdk):
    run = run_of(sdk, kwargs(*[("a", "a")] * 5))
    worker = worker_of(app, at_once=2)
    worker.poll(), worker.poll()
    sdk.evals.delete(run.eval_id)
    work(worker)
    state = app.eval_runs.state(run.id)
    assert state is not None and state.cancelled is not None and len(state.charges) == 1
    with pytest.raises(openai.NotFoundError):
        sdk.evals.runs.retrieve(run.id, eval_id=run.eval_id)


def test_a_repeat_whose_answer_was_lost_is_answered_with_the_same_run(app, sdk):
    evaluation = created(sdk)
    inline_run = {"data_source": kwargs(("a", "a")), "name": "r"}
    first = sdk.evals.runs.create(evaluation.id, **inline_run)
    again = {"x-stainless-retry-count": "1"}
    assert sdk.evals.runs.create(evaluation.id, **inline_run, extra_headers=again).id == first.id
    assert sdk.evals.runs.create(evaluation.id, **inline_run).id != first.id


def test_another_project_finds_neither_eval_nor_run(app, sdk):
    run = run_of(sdk, kwargs(("a", "a")))
    header = opening(app)("/v1/evals")
    other = app.keys.make(project="other", name="", scopes=("read", "write"), lives_s=None).secret
    http = http_of(app)
    for path in (f"/v1/evals/{run.eval_id}", f"/v1/evals/{run.eval_id}/runs/{run.id}"):
        assert http.get(path, headers=header).status_code == 200
        refused = http.get(path, headers={"authorization": f"Bearer {other}"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
    assert http.get("/v1/evals", headers={"authorization": f"Bearer {other}"}).json()["data"] == []


def deep_schema(depth: int) -> dict[str, Any]:
    return {"allOf": [deep_schema(depth - 1)]} if depth else {"type": "object"}


DEEP_SOURCE = "def grade(sample, item): return " + "-" * 100_000 + "1"
NO_SAMPLES = {"type": "custom", "item_schema": SCHEMA}


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"data_source_config": {"type": "logs"}}, "data_source_config.type", "data_source_not_served"),
        ({"data_source_config": {"type": "stored_completions"}}, "data_source_config.type",
         "data_source_not_served"),
        ({"data_source_config": {"type": "custom"}}, "data_source_config.item_schema",
         "missing_required_parameter"),
        ({"data_source_config": config({"type": "objekt"})}, "data_source_config.item_schema",
         "invalid_schema"),
        ({"data_source_config": config({"type": "array"})}, "data_source_config.item_schema", "invalid_schema"),
        ({"data_source_config": NO_SAMPLES}, "testing_criteria.0", "invalid_grader"),
        ({"testing_criteria": []}, "testing_criteria", "invalid_value"),
        ({"testing_criteria": [EXACT, EXACT]}, "testing_criteria.1.name", "invalid_grader"),
        ({"testing_criteria": [{**EXACT, "operation": "is"}]}, "testing_criteria.0.operation",
         "invalid_grader"),
        ({"testing_criteria": [{**EXACT, "reference": "{{item.anser}}"}]}, "testing_criteria.0",
         "invalid_grader"),
        ({"testing_criteria": [{**CLOSE, "pass_threshold": None}]}, "testing_criteria.0.pass_threshold",
         "invalid_grader"),
        ({"testing_criteria": [{**CLOSE, "evaluation_metric": "cosine"}]},
         "testing_criteria.0.evaluation_metric", "grader_not_served"),
        ({"testing_criteria": [{"type": "python", "name": "p", "source": DEEP_SOURCE}]},
         "testing_criteria.0.source", "invalid_grader"),
        ({"data_source_config": config(deep_schema(400))}, None, "invalid_json"),
        ({"metadata": deep_schema(100)}, None, "invalid_json"),
        ({"share_with_openai": True}, "share_with_openai", "unknown_parameter"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "invalid_value"),
    ],
)  # fmt: skip
def test_an_eval_that_cannot_be_is_a_400_that_names_the_parameter(refusing, changes, param, code):
    body = {"data_source_config": config(), "testing_criteria": [EXACT], **changes}
    before = refusing.evals.ids()
    response = http_of(refusing).post("/v1/evals", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code), error
    assert refusing.evals.ids() == before


def changed(source: dict[str, Any], /, **changes: Any) -> dict[str, Any]:
    return {**source, **changes}


INLINE, REQUESTED = kwargs(("a", "a")), requested({"question": "a", "answer": "b"})


@pytest.mark.parametrize(
    ("source", "param", "code"),
    [
        (changed(INLINE, type="responses"), "data_source.type", "data_source_not_served"),
        (changed(INLINE, source={"type": "stored_completions"}), "data_source.source.type",
         "data_source_not_served"),
        (changed(INLINE, source={"type": "file_id", "id": "file-x"}), "data_source.source.id", "file_not_found"),
        (changed(INLINE, source={"type": "file_content", "content": []}), "data_source.source.content",
         "invalid_value"),
        (changed(INLINE, source={"type": "file_content", "content": [{"sample": {}}]}),
         "data_source.source.content.0.item", "missing_required_parameter"),
        (changed(INLINE, model="tiny"), "data_source.model", "unknown_parameter"),
        (changed(REQUESTED, model="huge"), "data_source.model", "model_not_found"),
        (changed(REQUESTED, input_messages=None), "data_source.input_messages", None),
        (changed(REQUESTED, input_messages={"type": "item_reference", "item_reference": "sample.x"}),
         "data_source.input_messages.item_reference", "invalid_value"),
        (changed(REQUESTED, input_messages={"type": "template", "template": [
            {"role": "user", "content": "{{sample.output_text}}"}]}),
         "data_source.input_messages.template", "invalid_value"),
        (changed(REQUESTED, sampling_params={"temperature": 3}), "data_source.sampling_params.temperature",
         "invalid_value"),
        (changed(REQUESTED, sampling_params={"reasoning_effort": "low"}),
         "data_source.sampling_params.reasoning_effort", "unknown_parameter"),
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_is_a_400_that_names_the_parameter(refusing, source, param, code):
    evaluation = created(sdk_of(refusing))
    response = http_of(refusing).post(f"/v1/evals/{evaluation.id}/runs", json={"data_source": source})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert code in (None, error["code"]), error
    assert refusing.eval_runs.is_empty()


def test_files_of_another_purpose_and_evals_without_samples_are_refused(app, sdk):
    file = sdk.files.create(file=("f", ROWS[0]), purpose="fine-tune")
    with pytest.raises(openai.BadRequestError) as refused:
        run_of(sdk, {"type": "jsonl", "source": {"type": "file_id", "id": file.id}})
    assert refused.value.code == "invalid_file_purpose"
    no_sample = {**EXACT, "input": "{{ item.question }}"}
    evaluation = sdk.evals.create(data_source_config=NO_SAMPLES, testing_criteria=[no_sample])
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.evals.runs.create(evaluation.id, data_source=REQUESTED)
    assert refused.value.param == "data_source.type"
    rows = {"type": "file_content", "content": [{"item": item("a", "a")}]}
    run = sdk.evals.runs.create(evaluation.id, data_source={"type": "jsonl", "source": rows})
    work(worker_of(app))
    assert [item_.status for item_ in items_of(sdk, run)] == ["pass"]


def test_a_judge_that_is_no_model_here_is_refused_unless_an_endpoint_answers(app, sdk):
    model_graded = {**MODEL_GRADED, "model": "elsewhere"}
    with pytest.raises(openai.BadRequestError, match="--judge URL") as refused:
        run_of(sdk, kwargs(("a", "a")), model_graded)
    assert refused.value.code == "model_not_found"


def test_a_model_that_writes_no_text_is_asked_by_no_run_and_judges_none(tmp_path):
    app = app_in(tmp_path)
    sdk = sdk_of(app)
    of_job = create(sdk)
    happens(app, of_job.id, VALIDATED, PLANNED, LAUNCHED, checkpoint(20))
    state = app.jobs.state(of_job.id)
    assert state is not None
    trained = checkpoint_name(state.model, 20)
    for source, criterion, param in (
        (REQUESTED, EXACT, "data_source.model"),
        (changed(REQUESTED, model=trained), EXACT, "data_source.model"),
        (INLINE, MODEL_GRADED, "testing_criteria"),
        (INLINE, {**MODEL_GRADED, "model": trained}, "testing_criteria"),
    ):
        with pytest.raises(openai.BadRequestError, match="of 'classification', which generates no text") as refused:
            run_of(sdk, source, criterion)
        assert (refused.value.code, refused.value.param) == ("model_cannot", param)
    assert app.eval_runs.is_empty()


def test_the_order_of_evals_that_moves_is_not_honoured(sdk):
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.evals.list(order_by="updated_at")
    assert refused.value.param == "order_by"
    run = run_of(sdk, kwargs(("a", "a")))
    with pytest.raises(openai.BadRequestError):
        items_of(sdk, run, status="errored")
    with pytest.raises(openai.NotFoundError):
        items_of(sdk, run, after="outputitem-1")


def test_an_item_behind_the_last_is_nowhere(app, sdk):
    run = run_of(sdk, kwargs(("a", "a"), ("b", "b")))
    work(worker_of(app))
    last = items_of(sdk, run)[1].id
    for behind in (last[:-1] + "2", last[:-8] + "f" * 8, "outputitem-x"):
        with pytest.raises(openai.NotFoundError):
            sdk.evals.runs.output_items.retrieve(behind, eval_id=run.eval_id, run_id=run.id)


def test_a_schema_that_points_elsewhere_is_not_followed(app, sdk):
    schema = {"type": "object", "properties": {"answer": {"$ref": "http://127.0.0.1:1/schema"}}}
    evaluation = sdk.evals.create(data_source_config=config(schema), testing_criteria=[EXACT])
    run = sdk.evals.runs.create(evaluation.id, data_source=kwargs(("a", "a")))
    work(worker_of(app))
    error = sdk.evals.runs.retrieve(run.id, eval_id=run.eval_id).error
    assert error.code == "invalid_data_source" and "not fetched" in error.message


def test_numbers_that_are_none_are_no_json(app):
    body = json.dumps({"data_source_config": config(), "testing_criteria": [EXACT], "name": 1e999})
    response = http_of(app).post("/v1/evals", content=body, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")
