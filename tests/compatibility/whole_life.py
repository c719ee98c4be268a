"""A job's whole life by the official SDK, the same on each of its releases: needs nothing but the SDK.

    python whole_life.py BASE_URL KEY MODEL METHOD TRAINING_FILE

Says `paused` when the job is, and waits for a line before it goes on: server and worker may be killed then.
Its last line is JSON with what it saw.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai


def whole_life(client: Any, model: str, method: str, name: str) -> dict[str, Any]:
    """Upload; job, events, pause, resume, checkpoints, the model; an eval and a batch."""
    path = Path(name)
    with path.open("rb") as file:
        training = client.files.create(file=file, purpose="fine-tune")
    assert client.files.retrieve(training.id) == training
    assert training.id in [each.id for each in client.files.list(purpose="fine-tune")]
    assert client.files.content(training.id).read() == path.read_bytes()

    jobs = client.fine_tuning.jobs
    job = jobs.create(
        model=model,
        training_file=training.id,
        suffix="whole-life",
        seed=7,
        metadata={"sdk": openai.__version__},
        method={"type": method, method: {"hyperparameters": {"n_epochs": 6}}},
    )
    until(lambda: committed(jobs.retrieve(job.id)), "a first commit")
    jobs.pause(job.id)
    until(lambda: jobs.retrieve(job.id).status == "paused", "the run to leave")
    print("paused", flush=True)
    sys.stdin.readline()

    assert [each.id for each in jobs.list(metadata={"sdk": openai.__version__})] == [job.id]
    jobs.resume(job.id)
    until(lambda: jobs.retrieve(job.id).status in ("succeeded", "failed"), "the end")
    job = jobs.retrieve(job.id)
    assert job.status == "succeeded", job.error
    events = [*jobs.list_events(job.id, limit=7)]
    checkpoints = [*jobs.checkpoints.list(job.id, limit=1)]
    assert client.models.retrieve(job.fine_tuned_model).id == job.fine_tuned_model
    assert client.models.retrieve(checkpoints[0].fine_tuned_model_checkpoint).object == "model"
    assert job.fine_tuned_model in [each.id for each in client.models.list()]
    assert client.files.content(job.result_files[0]).text.startswith("step,train_loss")
    client.files.delete(training.id)
    try:
        client.files.retrieve(training.id)
    except openai.NotFoundError as error:
        assert error.code == "not_found"
    return {
        "openai": openai.__version__,
        "job": job.id,
        "weights": job.x_assay["weights_digest"],
        "messages": [each.message for each in events if each.type == "message"],
        "measured_steps": [each.data["step"] for each in events if each.type == "metrics"],
        "checkpoints": [each.step_number for each in checkpoints],
        "graded": graded(client),
        "vectors": vectors(client, job.fine_tuned_model),
    }


def graded(client: Any) -> list[str]:
    """Answers that are there are graded by two criteria; how each fared."""
    said = "{{ sample.output_text }}"
    right = {"input": said, "reference": "{{ item.right }}"}
    evaluation = client.evals.create(
        name="whole life",
        data_source_config={
            "type": "custom",
            "item_schema": {"type": "object", "properties": {"right": {"type": "string"}}},
            "include_sample_schema": True,
        },
        testing_criteria=[
            {"type": "string_check", "name": "exact", "operation": "eq", **right},
            {"type": "text_similarity", "name": "close", "evaluation_metric": "fuzzy_match",
             "pass_threshold": 0.5, **right},
        ],
    )  # fmt: skip
    assert client.evals.update(evaluation.id, name="renamed").name == "renamed"
    assert evaluation.id in [each.id for each in client.evals.list(limit=1)]
    pairs = [("yes", "yes"), ("no", "yes"), ("yes", "yes")]
    rows = [{"item": {"right": right}, "sample": {"output_text": text}} for text, right in pairs]
    source = {"type": "jsonl", "source": {"type": "file_content", "content": rows}}
    runs = client.evals.runs
    run = runs.create(evaluation.id, data_source=source, name="r")
    until(lambda: runs.retrieve(run.id, eval_id=evaluation.id).status == "completed", "the grades")
    run = runs.retrieve(run.id, eval_id=evaluation.id)
    assert (run.result_counts.passed, run.result_counts.failed, run.result_counts.total) == (2, 1, 3)
    assert [each.id for each in runs.list(evaluation.id, status="completed")] == [run.id]
    items = [*runs.output_items.list(run.id, eval_id=evaluation.id, limit=2)]
    one = runs.output_items.retrieve(items[1].id, eval_id=evaluation.id, run_id=run.id)
    assert [each.name for each in one.results] == ["exact", "close"]
    other = runs.create(evaluation.id, data_source=source, name="cancelled or done")
    try:
        assert runs.cancel(other.id, eval_id=evaluation.id).status == "canceled"
    except openai.BadRequestError as done:
        assert "is completed" in str(done)
    assert runs.delete(other.id, eval_id=evaluation.id).deleted
    client.evals.delete(evaluation.id)
    return [each.status for each in items]


def vectors(client: Any, model: str) -> list[str]:
    """A batch of embeddings by the model; the requests that were answered."""
    url = "/v1/embeddings"
    requests = [
        {"custom_id": f"r{n}", "method": "POST", "url": url, "body": {"model": model, "input": f"return {n}"}}
        for n in range(3)
    ]
    lines = "\n".join(map(json.dumps, requests)).encode()
    file = client.files.create(file=("requests.jsonl", lines), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h")
    assert batch.id in [each.id for each in client.batches.list(limit=1)]
    until(lambda: client.batches.retrieve(batch.id).status in ("completed", "failed"), "the batch")
    batch = client.batches.retrieve(batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 3), batch.errors
    try:
        client.batches.cancel(batch.id)
    except openai.BadRequestError as done:
        assert "is completed" in str(done)
    found = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert all(each["response"]["body"]["data"][0]["embedding"] for each in found)
    return [each["custom_id"] for each in found]


def committed(job: Any) -> int:
    """The step of its last commit; the SDK's type has no field for it."""
    return int(job.x_assay["committed_step"])


def until(has_come: Callable[[], object], what: str) -> None:
    """Wait, in vain for ten minutes."""
    for _ in range(6000):
        if has_come():
            return
        time.sleep(0.1)
    raise SystemExit(f"waited in vain for {what}")


if __name__ == "__main__":
    base_url, key, *rest = sys.argv[1:]
    print(json.dumps(whole_life(openai.OpenAI(base_url=base_url, api_key=key), *rest)))
