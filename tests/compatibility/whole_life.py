"""A job's whole life by the official SDK, the same on each of its releases: needs nothing but the SDK.

    python whole_life.py sync|async BASE_URL KEY MODEL TRAINING_FILE

Each step stands here once, as an asynchronous client is asked; a synchronous one is asked through `Awaited`.
MODEL learns to write, by the method `supervised`. Says `paused` when its job is, and waits for a line before it
goes on: server and worker may be killed then. Its last line is JSON with what it saw.
"""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai

LIFE = {"sdk": openai.__version__, "process": str(os.getpid())}
"""Says whose a job is: another life may be beside this one."""
ENDS = ["fine_tuning.job.succeeded", "eval.run.succeeded", "batch.completed"]
SAMPLING = {"max_completion_tokens": 8, "temperature": 0, "seed": 7}


class Awaited:
    """A synchronous client, or a part of one, whose calls are awaited."""

    def __init__(self, part: Any) -> None:
        self._part = part

    def __getattr__(self, name: str) -> "Awaited":
        return Awaited(getattr(self._part, name))

    async def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._part(*arguments, **named)


class Hook(ThreadingHTTPServer):
    """Receives what webhooks are told; `unwrap` is the SDK's, which throws where a signature is wrong."""

    daemon_threads = True

    def __init__(self, unwrap: Callable[..., Any]) -> None:
        super().__init__(("127.0.0.1", 0), _WebhookHandler)
        self._unwrap = unwrap
        self.secret = ""
        self.events: list[tuple[str, str]] = []
        """Type and what it is about."""
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def take(self, body: str, headers: dict[str, str]) -> None:
        """What was changed on its way is none of it; what was not is."""
        try:
            self._unwrap(f"{body} ", headers, secret=self.secret)
        except openai.InvalidWebhookSignatureError:
            event = self._unwrap(body, headers, secret=self.secret)
            self.events.append((event.type, event.data.id))


class _WebhookHandler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        self.server.take(body, dict(self.headers))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


async def whole_life(client: Any, hook: Hook, model: str, name: str) -> dict[str, Any]:
    """Webhook, upload; job, events, pause, resume, checkpoints; answers of the model, an eval and a batch."""
    hook.secret = await signing_secret(client, f"http://127.0.0.1:{hook.server_address[1]}/")
    training = await uploaded(client, Path(name))
    jobs = client.fine_tuning.jobs
    job = await jobs.create(
        model=model,
        training_file=training,
        suffix="whole-life",
        seed=7,
        metadata=LIFE,
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 10}}},
    )
    retrieve = partial(jobs.retrieve, job.id)
    await until(retrieve, committed, "a first commit")
    await jobs.pause(job.id)
    await until(retrieve, lambda now: now.status == "paused", "the run to leave")
    print("paused", flush=True)
    sys.stdin.readline()

    assert [item.id for item in await all_of(jobs.list(metadata=LIFE))] == [job.id]
    await jobs.resume(job.id)
    job = await until(retrieve, lambda now: now.status in ("succeeded", "failed"), "the end")
    assert job.status == "succeeded", job.error
    events = await all_of(jobs.list_events(job.id, limit=7))
    checkpoints = await all_of(jobs.checkpoints.list(job.id, limit=1))
    checkpoint = checkpoints[-1].fine_tuned_model_checkpoint
    for element in (job.fine_tuned_model, checkpoint):
        assert (await client.models.retrieve(element)).id == element
    assert job.fine_tuned_model in [item.id for item in await all_of(client.models.list())]
    assert (await client.files.content(job.result_files[0])).text.startswith("step,train_loss")
    await client.files.delete(training)
    try:
        await client.files.retrieve(training)
    except openai.NotFoundError as error:
        assert error.code == "not_found"
    output = await complete(client, checkpoint, "alpha beta gamma delta")
    run, passes = await graded(client, job.fine_tuned_model)
    batch, completed = await vectors(client, job.fine_tuned_model)
    ended = dict(zip(ENDS, (job.id, run, batch), strict=True))
    await until(partial(webhook_events, hook), lambda now: now >= set(ended.items()), f"word of {ended}")
    return {
        "openai": openai.__version__,
        "job": job.id,
        "weights": job.x_assay["weights_digest"],
        "messages": [event.message for event in events if event.type == "message"],
        "measured_steps": [event.data["step"] for event in events if event.type == "metrics"],
        "checkpoints": [item.step_number for item in checkpoints],
        "said": output,
        "graded": passes,
        "vectors": completed,
    }


async def signing_secret(client: Any, url: str) -> str:
    """Of a new webhook; the older releases know what it is sent, and have no name for this call."""
    request = {"name": "whole life", "url": url, "event_types": ENDS}
    if hasattr(client.webhooks, "create"):
        return str((await client.webhooks.create(**request)).signing_secret)
    created = await client.post("/webhook_endpoints", body=request, cast_to=object)
    return str(created["signing_secret"])


async def uploaded(client: Any, path: Path) -> str:
    """The id of a file that came in parts; it is the one that came whole."""
    whole = await client.files.create(file=path, purpose="fine-tune")
    assert await client.files.retrieve(whole.id) == whole
    upload = await client.uploads.upload_file_chunked(
        file=path, mime_type="text/jsonl", purpose="fine-tune", part_size=path.stat().st_size // 3
    )
    assert (upload.status, upload.file.bytes) == ("completed", whole.bytes)
    for item in (whole, upload.file):
        assert item.id in [file.id for file in await all_of(client.files.list(purpose="fine-tune"))]
        assert (await client.files.content(item.id)).content == path.read_bytes()
    assert (await client.files.delete(whole.id)).deleted
    return str(upload.file.id)


async def complete(client: Any, model: str, question: str) -> str:
    """What a model says to a question: at once, and piece by piece."""
    request = {"model": model, "messages": [{"role": "user", "content": question}], **SAMPLING}
    whole = await client.chat.completions.create(**request)
    pieces = await all_of(
        client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
    )
    choices = [choice for piece in pieces for choice in piece.choices]
    output = "".join(choice.delta.content or "" for choice in choices)
    assert (output, choices[-1].finish_reason) == (
        whole.choices[0].message.content,
        whole.choices[0].finish_reason,
    )
    assert pieces[-1].usage == whole.usage
    return output


async def graded(client: Any, model: str) -> tuple[str, list[str]]:
    """The model's answers, graded by two criteria; the run, and how each answer fared."""
    output = "{{ sample.output_text }}"
    right = {"input": output, "reference": "{{ item.right }}"}
    evaluation = await client.evals.create(
        name="whole life",
        data_source_config={
            "type": "custom",
            "item_schema": {
                "type": "object",
                "properties": {"asked": {"type": "string"}, "right": {"type": "string"}},
            },
            "include_sample_schema": True,
        },
        testing_criteria=[
            {"type": "string_check", "name": "exact", "operation": "eq", **right},
            {"type": "text_similarity", "name": "close", "evaluation_metric": "fuzzy_match",
             "pass_threshold": 0.5, **right},
        ],
    )  # fmt: skip
    assert (await client.evals.update(evaluation.id, name="renamed")).name == "renamed"
    assert evaluation.id in [element.id for element in await all_of(client.evals.list(limit=1))]
    questions = ["beta alpha", "return yield", "class import"]
    rights = [await complete(client, model, question) for question in questions]
    rights[1] = "0123456789"  # it was not said
    rows = [{"item": {"asked": request, "right": right}} for request, right in zip(questions, rights, strict=True)]
    source = {
        "type": "completions",
        "model": model,
        "source": {"type": "file_content", "content": rows},
        "input_messages": {"type": "template", "template": [{"role": "user", "content": "{{ item.asked }}"}]},
        "sampling_params": SAMPLING,
    }
    runs = client.evals.runs
    run = await runs.create(evaluation.id, data_source=source, name="r")
    retrieve = partial(runs.retrieve, run.id, eval_id=evaluation.id)
    run = await until(retrieve, lambda now: now.status in ("completed", "failed"), "the grades")
    assert run.status == "completed", run.error
    assert (run.result_counts.passed, run.result_counts.failed, run.result_counts.total) == (2, 1, 3), rights
    assert [element.id for element in await all_of(runs.list(evaluation.id, status="completed"))] == [run.id]
    items = await all_of(runs.output_items.list(run.id, eval_id=evaluation.id, limit=2))
    one = await runs.output_items.retrieve(items[1].id, eval_id=evaluation.id, run_id=run.id)
    assert [result.name for result in one.results] == ["exact", "close"]
    other = await runs.create(evaluation.id, data_source=source, name="cancelled or done")
    try:
        assert (await runs.cancel(other.id, eval_id=evaluation.id)).status == "canceled"
    except openai.BadRequestError as done:
        assert "is completed" in str(done)
    assert (await runs.delete(other.id, eval_id=evaluation.id)).deleted
    await client.evals.delete(evaluation.id)
    return run.id, [item.status for item in items]


async def vectors(client: Any, model: str) -> tuple[str, list[str]]:
    """A batch of embeddings by the model; its id, and the requests that were answered."""
    url = "/v1/embeddings"
    requests = [
        {"custom_id": f"r{n}", "method": "POST", "url": url, "body": {"model": model, "input": f"return {n}"}}
        for n in range(3)
    ]
    lines = "\n".join(map(json.dumps, requests)).encode()
    file = await client.files.create(file=("requests.jsonl", lines), purpose="batch")
    batch = await client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h")
    assert batch.id in [item.id for item in await all_of(client.batches.list(limit=1))]
    retrieve = partial(client.batches.retrieve, batch.id)
    batch = await until(retrieve, lambda now: now.status in ("completed", "failed"), "the batch")
    assert (batch.status, batch.request_counts.completed) == ("completed", 3), batch.errors
    try:
        await client.batches.cancel(batch.id)
    except openai.BadRequestError as done:
        assert "is completed" in str(done)
    text = (await client.files.content(batch.output_file_id)).text
    found = [json.loads(line) for line in text.splitlines()]
    assert all(item["response"]["body"]["data"][0]["embedding"] for item in found)
    return batch.id, [item["custom_id"] for item in found]


async def webhook_events(hook: Hook) -> set[tuple[str, str]]:
    """What webhooks were told until now."""
    return {*hook.events}


def committed(job: Any) -> int:
    """The step of its last commit; the SDK's type has no field for it."""
    return int(job.x_assay["committed_step"])


async def all_of(resources: Any) -> list[Any]:
    """All that is listed, page by page, or said, piece by piece."""
    found = await resources
    return [item async for item in found] if hasattr(found, "__aiter__") else [*found]


async def until(poll: Callable[[], Awaitable[Any]], has_come: Callable[[Any], object], what: str) -> Any:
    """What is answered once it has come; in vain for ten minutes."""
    for _ in range(3000):
        if has_come(found := await poll()):
            return found
        await asyncio.sleep(0.2)
    raise SystemExit(f"waited in vain for {what}")


if __name__ == "__main__":
    manner, base_url, key, *rest = sys.argv[1:]
    sdk: Any = {"sync": openai.OpenAI, "async": openai.AsyncOpenAI}[manner](base_url=base_url, api_key=key)
    resources = Awaited(sdk) if manner == "sync" else sdk
    print(json.dumps(asyncio.run(whole_life(resources, Hook(sdk.webhooks.unwrap), *rest))))
