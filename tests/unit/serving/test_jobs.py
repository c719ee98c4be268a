import openai
import pytest
from starlette.testclient import TestClient

from assay.base.errors import ConfigError
from assay.records.fine_tuning_job import (
    JobAcquired,
    JobCheckpoint,
    JobFailed,
    JobSucceeded,
    JobValidated,
    LaunchPlanned,
    LaunchStarted,
    MetricPoint,
    RunLeft,
)
from assay.serving.jobs import check_not_managed_job
from assay.serving.openai.app_state import AppState
from served import app_in, http_of, sdk_of

AT = {"at_s": 1_800_000_100.0, "lease": 1}
VALIDATED = JobValidated(
    **AT, run_id="r", num_rows=9, dataset_fingerprint="f", num_steps=20,
    hyperparameters={"n_epochs": 2, "batch_size": 32, "learning_rate_multiplier": 1.0},
)  # fmt: skip
PLANNED = LaunchPlanned(**AT, number=1)
LAUNCHED = LaunchStarted(**AT, number=1, where="process 1 on host", step=0)
SUCCEEDED = JobSucceeded(
    **AT, step=20, weights_digest="w", result_file="file-" + "0" * 24, trained_tokens=99, measured={"auc": 0.9}
)


def checkpoint(step: int, *retained: int) -> JobCheckpoint:
    points = tuple(
        MetricPoint(step=item, at_s=AT["at_s"], values={"train_loss": 1 / item}) for item in range(step - 4, step + 1)
    )
    return JobCheckpoint(**AT, step=step, weights_digest=f"w{step}", retained_steps=retained or (step,), points=points)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory) -> AppState:
    """A place for what is refused: nothing comes into it but files."""
    return app_in(tmp_path_factory.mktemp("untouched"))


@pytest.fixture(scope="module")
def refusing(untouched) -> tuple[openai.OpenAI, TestClient]:
    """SDK and plain HTTP before it."""
    return sdk_of(untouched), http_of(untouched)


def create(sdk: openai.OpenAI, **kwargs):
    file = sdk.files.create(file=("rows.jsonl", b'{"text": "a", "label": 1}\n'), purpose="fine-tune")
    return sdk.fine_tuning.jobs.create(**{"model": "tiny", "training_file": file.id, **kwargs})


def happens(app: AppState, job_id: str, *entries) -> None:
    for entry in entries:
        if isinstance(entry, JobSucceeded):
            app.jobs.note_model(app.jobs.state(job_id).created)
        app.jobs.log(job_id).append(lambda _, entry=entry: entry)


def test_a_job_is_made_of_what_was_asked_and_says_it_again(sdk) -> None:
    job = create(
        sdk, seed=7, suffix="mine", metadata={"team": "rl"},
        method={"type": "classification", "classification": {"hyperparameters": {"n_epochs": 3}}},
    )  # fmt: skip
    assert (job.object, job.status, job.seed, job.metadata) == (
        "fine_tuning.job",
        "validating_files",
        7,
        {"team": "rl"},
    )
    assert (job.hyperparameters.n_epochs, job.hyperparameters.batch_size) == (3, "auto")
    assert (job.fine_tuned_model, job.error, job.finished_at, job.result_files) == (None, None, None, [])
    assert sdk.fine_tuning.jobs.retrieve(job.id) == job
    assert create(sdk, hyperparameters={"n_epochs": 2}).hyperparameters.n_epochs == 2  # the old form
    assert isinstance(create(sdk).seed, int)


def test_the_life_of_a_job_in_statuses_and_events(app, sdk) -> None:
    job_id = create(sdk, suffix="mine").id
    seen = []
    for entry in (
        JobAcquired(at_s=1.0, lease=1, worker="w"),
        VALIDATED,
        PLANNED,
        LAUNCHED,
        checkpoint(5),
        SUCCEEDED,
    ):
        happens(app, job_id, entry)
        seen.append(sdk.fine_tuning.jobs.retrieve(job_id).status)
    assert seen == ["validating_files", "queued", "queued", "running", "running", "succeeded"]
    job = sdk.fine_tuning.jobs.retrieve(job_id)
    assert job.fine_tuned_model == f"ft:tiny:default:mine:{job_id.removeprefix('ftjob-')}"
    assert (job.trained_tokens, job.hyperparameters.batch_size, job.x_assay["measured"]) == (
        99,
        32,
        {"auc": 0.9},
    )
    events = [*sdk.fine_tuning.jobs.list_events(job_id, limit=3)]
    assert [event.message for event in reversed(events) if event.type == "message"] == [
        f"Created fine-tuning job: {job_id}",
        f"Validating training file: {job.training_file}",
        "Files validated, moving job to queued state",
        "Fine-tuning job started",
        "Checkpoint created at step 5",
        f"New fine-tuned model created: {job.fine_tuned_model}",
        "The job has successfully completed",
    ]
    measured = [event for event in reversed(events) if event.type == "metrics"]
    assert [event.data["step"] for event in measured] == [1, 2, 3, 4, 5]
    assert measured[1].message == "Step 2/20: training loss=0.5"
    assert sdk.models.retrieve(job.fine_tuned_model).id in [model.id for model in sdk.models.list()]


def test_events_keep_their_ids_while_others_come(app, sdk) -> None:
    job_id = create(sdk).id
    happens(app, job_id, VALIDATED, PLANNED, LAUNCHED, checkpoint(5))
    before = [*sdk.fine_tuning.jobs.list_events(job_id)]
    page = sdk.fine_tuning.jobs.list_events(job_id, limit=4)
    happens(app, job_id, checkpoint(10), SUCCEEDED)
    seen = [*page.data]
    while page.has_next_page():
        page = page.get_next_page()
        seen += page.data
    assert seen == before
    assert [*sdk.fine_tuning.jobs.list_events(job_id)][8:] == before


def test_a_page_of_events_reads_what_it_shows_and_a_job_no_point_but_the_last(app, sdk) -> None:
    job_id = create(sdk).id
    happens(app, job_id, VALIDATED, PLANNED, LAUNCHED, *(checkpoint(step) for step in range(5, 105, 5)))
    state = app.jobs.state(job_id)
    assert sum(len(checkpoint.points) for checkpoint in state.checkpoints) == len(state.checkpoints) == 20
    read = []
    log = app.jobs.log(job_id)
    whole, log.entry = log.entry, lambda number: read.append(number) or whole(number)
    page = sdk.fine_tuning.jobs.list_events(job_id, limit=7)
    assert [event.data["step"] for event in page.data if event.data] == [100, 99, 98, 97, 96]
    assert len(read) == 2
    measured = [
        list_event.data["step"] for list_event in sdk.fine_tuning.jobs.list_events(job_id, limit=7) if list_event.data
    ]
    assert measured == [*range(100, 0, -1)]


def test_only_checkpoints_that_were_not_retired_are_listed_and_are_models(app, sdk) -> None:
    job_id = create(sdk).id
    happens(app, job_id, VALIDATED, PLANNED, LAUNCHED, checkpoint(5), checkpoint(10), checkpoint(15, 10, 15))
    found = [*sdk.fine_tuning.jobs.checkpoints.list(job_id)]
    assert [item.step_number for item in found] == [15, 10]
    assert found[1].metrics.train_loss == 0.1
    name = found[1].fine_tuned_model_checkpoint
    assert name.endswith(":ckpt-step-10") and sdk.models.retrieve(name).id == name
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve(name.replace("step-10", "step-5"))


def test_pause_and_resume_before_anything_was_begun(sdk) -> None:
    job_id = create(sdk).id
    assert sdk.fine_tuning.jobs.pause(job_id).status == "paused"
    assert sdk.fine_tuning.jobs.pause(job_id).status == "paused"  # a repeat finds it there
    assert sdk.fine_tuning.jobs.resume(job_id).status == "validating_files"
    assert sdk.fine_tuning.jobs.resume(job_id).status == "validating_files"
    messages = [event.message for event in sdk.fine_tuning.jobs.list_events(job_id)]
    assert messages[:2] == ["Resume requested, moving job to queued state", "Pause requested"]


def test_a_running_job_is_pausing_until_its_run_has_left(app, sdk) -> None:
    job_id = create(sdk).id
    happens(app, job_id, VALIDATED, PLANNED, LAUNCHED, checkpoint(5))
    assert sdk.fine_tuning.jobs.pause(job_id).status == "pausing"
    happens(app, job_id, RunLeft(**AT, step=5))
    assert sdk.fine_tuning.jobs.retrieve(job_id).status == "paused"
    assert next(iter(sdk.fine_tuning.jobs.list_events(job_id))).message == "Paused at step 5"
    assert sdk.fine_tuning.jobs.resume(job_id).status == "queued"
    happens(app, job_id, PLANNED, LaunchStarted(**AT, number=2, where="there", step=5))
    job = sdk.fine_tuning.jobs.retrieve(job_id)
    assert (job.status, job.x_assay["committed_step"]) == ("running", 5)


def test_a_preempted_job_is_queued_again_by_itself(app, sdk) -> None:
    job_id = create(sdk).id
    happens(app, job_id, VALIDATED, PLANNED, LAUNCHED, RunLeft(**AT, step=0))
    assert sdk.fine_tuning.jobs.retrieve(job_id).status == "queued"
    event = next(iter(sdk.fine_tuning.jobs.list_events(job_id)))
    assert (event.level, event.message) == ("warn", "Interrupted at step 0; it resumes automatically")


def test_a_cancelled_job_is_so_at_once_and_for_good_and_keeps_its_commits(app, sdk) -> None:
    job_id = create(sdk).id
    happens(app, job_id, VALIDATED, PLANNED, LAUNCHED, checkpoint(5))
    job = sdk.fine_tuning.jobs.cancel(job_id)
    assert (job.status, job.finished_at) == ("cancelled", int(app.clock.now_s()))
    assert sdk.fine_tuning.jobs.cancel(job_id).status == "cancelled"
    happens(app, job_id, RunLeft(**AT, step=5))
    assert len([*sdk.fine_tuning.jobs.checkpoints.list(job_id)]) == 1
    for verb in ("pause", "resume"):
        with pytest.raises(openai.BadRequestError, match=f"is cancelled: it cannot {verb}"):
            getattr(sdk.fine_tuning.jobs, verb)(job_id)


@pytest.mark.parametrize("end", [SUCCEEDED, JobFailed(**AT, code="training_failed", message="Loss is NaN.")])
def test_of_a_job_that_has_ended_nothing_can_be_asked(app, sdk, end) -> None:
    job_id = create(sdk).id
    happens(app, job_id, VALIDATED, PLANNED, LAUNCHED, end)
    for verb in ("pause", "resume", "cancel"):
        with pytest.raises(openai.BadRequestError) as refused:
            getattr(sdk.fine_tuning.jobs, verb)(job_id)
        assert refused.value.code == "invalid_job_state"


def test_a_job_that_was_never_paused_cannot_be_resumed(sdk) -> None:
    with pytest.raises(openai.BadRequestError, match="Only a job that was paused"):
        sdk.fine_tuning.jobs.resume(create(sdk).id)


def test_a_failed_job_says_why(app, sdk) -> None:
    job_id = create(sdk).id
    happens(
        app,
        job_id,
        JobFailed(**AT, code="invalid_training_file", message="line 3: no", param="training_file"),
    )
    job = sdk.fine_tuning.jobs.retrieve(job_id)
    assert (job.status, job.error.code, job.error.param) == ("failed", "invalid_training_file", "training_file")
    event = next(iter(sdk.fine_tuning.jobs.list_events(job_id)))
    assert (event.level, event.message) == ("error", "line 3: no")


def test_nobody_but_a_worker_goes_on_with_the_run_of_a_job_that_may_go_on_or_must_not(app, sdk) -> None:
    def refused(job_id: str, *, is_launched: bool = False) -> str:
        try:
            check_not_managed_job(app.jobs.store, job_id, app.clock, is_launched=is_launched)
        except ConfigError as error:
            return str(error)
        return ""

    paused, cancelled, running, done = (create(sdk).id for _ in range(4))
    sdk.fine_tuning.jobs.pause(paused)
    sdk.fine_tuning.jobs.cancel(cancelled)
    happens(app, running, VALIDATED, PLANNED, LAUNCHED)
    happens(app, done, VALIDATED, PLANNED, LAUNCHED, SUCCEEDED)
    assert "which is paused. Resume it over the API" in refused(paused)
    assert f"which is cancelled. Start a new run from its last commit: 'assay train --from {cancelled}" in (
        refused(cancelled)
    )
    assert "which is running. 'assay serve worker' continues" in refused(running)
    assert refused(running, is_launched=True) == ""  # a scheduler lets run what a worker gave it
    assert refused(paused, is_launched=True) and refused(cancelled, is_launched=True)
    assert refused(done) == refused("some-run") == ""


HYPER = "method.classification.hyperparameters"


@pytest.mark.parametrize(
    ("kwargs", "param"),
    [
        ({"model": "nothing"}, "model"),
        ({"training_file": "file-" + "0" * 24}, "training_file"),
        ({"training_file": "../secret"}, "training_file"),
        ({"validation_file": "x"}, "validation_file"),
        ({"suffix": "x" * 65}, "suffix"),
        ({"suffix": "a:b"}, "suffix"),
        ({"seed": -1}, "seed"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "metadata"),
        ({"integrations": [{"type": "wandb", "wandb": {"project": "p"}}]}, "integrations"),
        ({"method": {"type": "reinforcement"}}, "method.type"),
        ({"method": {"type": "classification", "dpo": {}}}, "method.dpo"),
        (
            {"method": {"type": "classification", "classification": {"grader": 1}}},
            "method.classification.grader",
        ),
        (
            {"method": {"type": "classification", "classification": {"hyperparameters": {"beta": 1}}}},
            f"{HYPER}.beta",
        ),
        (
            {"method": {"type": "classification", "classification": {"hyperparameters": {"n_epochs": 0}}}},
            f"{HYPER}.n_epochs",
        ),
        (
            {"method": {"type": "classification", "classification": {"hyperparameters": {"n_epochs": 1.5}}}},
            f"{HYPER}.n_epochs",
        ),
        ({"extra_body": {"budget": 5}}, "budget"),
        ({"extra_query": {"dry_run": "1"}}, "dry_run"),
    ],
)
def test_a_parameter_that_cannot_be_honoured_is_a_400_that_names_it_and_makes_nothing(
    untouched, refusing, kwargs, param
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(refusing[0], **kwargs)
    assert refused.value.param.startswith(param)
    app = untouched
    assert app.jobs.ids() == app.jobs.open_ids() == []


def test_a_file_of_another_purpose_or_a_deleted_one_trains_nothing(sdk) -> None:
    other = sdk.files.create(file=("a", b"1"), purpose="evals")
    with pytest.raises(openai.BadRequestError, match="purpose 'evals'"):
        create(sdk, training_file=other.id)
    sdk.files.delete(other.id)
    with pytest.raises(openai.BadRequestError, match="no file"):
        create(sdk, training_file=other.id)


def test_jobs_are_listed_by_age_and_by_metadata(app, sdk) -> None:
    created_ids = []
    for number in range(5):
        app.clock.sleep_s(1)
        created_ids.append(create(sdk, metadata={"team": "rl" if number % 2 else "sft"}).id)
    assert [job.id for job in sdk.fine_tuning.jobs.list(limit=2)] == created_ids[::-1]
    assert [job.id for job in sdk.fine_tuning.jobs.list(metadata={"team": "rl"})] == [created_ids[3], created_ids[1]]
    assert [job.id for job in sdk.fine_tuning.jobs.list(extra_query={"metadata": "null"})] == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b"[]", "invalid_json"),
        (b"\xff", "invalid_json"),
        (b'{"model": "\\ud800"}', "invalid_json"),
        (b'{"model": "\\u0000"}', "invalid_json"),
        (b'{"model": NaN}', "invalid_json"),
        (b" " * (1 << 20) + b"{}", "body_too_long"),
        (b"{}", "missing_required_parameter"),
    ],
)
def test_a_body_that_is_no_request_is_a_400_in_an_envelope(refusing, body, code) -> None:
    response = refusing[1].post("/v1/fine_tuning/jobs", content=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, code)
    assert response.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    ("method", "path", "meant"),
    [
        ("GET", "/models", "/v1/models"),
        ("GET", "/v1/v1/models", "/v1/models"),
        ("POST", "/fine_tuning/jobs/ftjob-1/cancel", "/v1/fine_tuning/jobs/ftjob-1/cancel"),
        ("GET", "/organization/projects", "/v1/organization/projects"),
        ("POST", "/models", None),
        ("GET", "/assistants", None),
        ("GET", "/v1/v1/assistants", None),
        ("GET", "/v1/assistants", None),
    ],
)
def test_a_base_url_without_its_end_is_named(refusing, method, path, meant) -> None:
    response = refusing[1].request(method, path)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (404, "endpoint_not_served")
    output = "See docs/compatibility.md for the served calls." if meant is None else f"{method} {meant} is served."
    assert error["message"].startswith(f"{method} {path} is not served here. {output}")
    assert ("base_url to http://HOST:PORT/v1" in error["message"]) == (meant is not None)


def test_what_is_not_served_says_so_and_a_strange_host_is_turned_away(refusing) -> None:
    _, http = refusing
    for method, path in (("GET", "/v1/assistants"), ("POST", "/v1/models"), ("GET", "/"), ("PUT", "/v1/files")):
        response = http.request(method, path)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "endpoint_not_served")
    for host, status in {
        "evil.example": 403,
        "localhost:1": 200,
        "[::1]:80": 200,
        "127.0.0.1": 200,
        "": 403,
    }.items():
        assert http.get("/v1/models", headers={"host": host}).status_code == status, host


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "limit=1e3", "order=up", "nonsense=1"])
def test_a_page_that_cannot_be_is_refused(refusing, query) -> None:
    response = refusing[1].get(f"/v1/fine_tuning/jobs?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == query.partition("=")[0]
