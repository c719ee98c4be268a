"""Every method of language through the API: a real server, a real worker and real runs, by the official SDK."""

from pathlib import Path

import openai
import pyarrow.parquet as pq
import pytest

from assay.store.run_results import saved_audit
from integration.test_serving import Here, messages, ours, undisturbed_digest
from served_talker import GRADER, lines, rows, write_talker
from slurm_cluster import wait_until

MEASURED = {
    "supervised": {"full_valid_loss", "full_valid_mean_token_accuracy"},
    "dpo": {"full_valid_loss", "full_valid_accuracy"},
    "reward_model": {"full_valid_loss", "full_valid_accuracy"},
    "reinforcement": {"full_valid_reward_mean"},
}


LONG_S = 900.0
"""On a busy machine."""


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """One server and one worker for all jobs of this file."""
    found = Here(tmp_path_factory.mktemp("served"))
    write_talker(found.models, with_weights=True)
    try:
        yield found
    finally:
        found.end()


@pytest.fixture(scope="module")
def sdk(here: Here) -> openai.OpenAI:
    _, sdk = here.serve()
    here.work()
    return sdk


def ended(sdk: openai.OpenAI, job_id: str):
    """The job, once nothing goes on."""
    jobs = sdk.fine_tuning.jobs
    wait_until(lambda: jobs.retrieve(job_id).status in ("succeeded", "failed"), "the end", LONG_S)
    return jobs.retrieve(job_id)


def create(sdk: openai.OpenAI, method: str):
    training, validation = (
        sdk.files.create(file=("rows.jsonl", lines(rows(method, number, seed=seed))), purpose="fine-tune").id
        for number, seed in ((128, 0), (24, 1))
    )
    inside = {"hyperparameters": {"n_epochs": 1, "batch_size": "auto", "learning_rate_multiplier": 2.0}}
    rewards = {"grader": GRADER} if method == "reinforcement" else {}
    return sdk.fine_tuning.jobs.create(
        model="talker",
        training_file=training,
        validation_file=validation,
        seed=7,
        method={"type": method, method: {**inside, **rewards}},
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("method", list(MEASURED))
def test_a_job_of_each_method_trains_on_its_file_and_is_measured_on_the_other(
    here: Here, sdk: openai.OpenAI, method: str
) -> None:
    jobs = sdk.fine_tuning.jobs
    job_id = create(sdk, method).id
    job = ended(sdk, job_id)
    assert job.status == "succeeded", job.error
    assert job.hyperparameters.to_dict() == {"n_epochs": 1, "batch_size": 16, "learning_rate_multiplier": 2.0}
    run = here.home.run(job_id)
    assert run.recipe["trainer"]["optimizer"]["learning_rate"] == 6e-3
    assert (ours(job)["num_rows"], ours(job)["total_steps"]) == (152, 8)  # 128 rows in batches of 16
    assert ours(job)["weights_digest"] == undisturbed_digest(here, job_id, f"twin-{method}")
    assert saved_audit(run.run_dir).verdict == "pass"
    points = {e.data["step"]: e.data for e in jobs.list_events(job_id, limit=100) if e.type == "metrics"}
    assert sorted(points) == [*range(1, 9)]
    assert [step for step, data in points.items() if MEASURED[method] <= set(data)] == [8, 4]
    (newest, *_) = jobs.checkpoints.list(job_id).data
    assert newest.metrics.to_dict().keys() >= MEASURED[method]
    table = sdk.files.content(job.result_files[0]).text.splitlines()
    assert set(table[0].split(",")) >= MEASURED[method] and len(table) == 9


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_validation_loss_is_the_mean_over_the_trained_tokens_of_the_validation_file(
    here: Here, sdk: openai.OpenAI
) -> None:
    job_id = create(sdk, "supervised").id
    assert ended(sdk, job_id).status == "succeeded"
    folder = Path(here.home.run(job_id).run_dir) / "evaluations" / "00000008-validation"
    table = pq.read_table(folder / "predictions.parquet").to_pydict()
    assert len(table["row_id"]) == 24
    weighed = sum(map(float.__mul__, table["nats_per_token"], map(float, table["trained_tokens"])))
    output = sdk.fine_tuning.jobs.checkpoints.list(job_id).data[0].metrics.full_valid_loss
    assert output == pytest.approx(weighed / sum(table["trained_tokens"]), rel=1e-9)
    assert any(f"full validation loss={output:.4g}" in line for line in messages(sdk, job_id))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_files_that_share_rows_fail_the_job_by_their_lines(sdk: openai.OpenAI) -> None:
    training = rows("supervised", 30)
    one, other = (
        sdk.files.create(file=("rows.jsonl", lines(of)), purpose="fine-tune").id
        for of in (training, [*rows("supervised", 2, seed=1), training[10]])
    )
    job = sdk.fine_tuning.jobs.create(model="talker", training_file=one, validation_file=other)
    error = ended(sdk, job.id).error
    assert (error.code, error.param) == ("invalid_validation_file", "validation_file")
    assert "line 3 is line 11 there" in error.message
