"""Evals and batches over a real server, real workers and real models, killed on the way: by the SDK."""

import json
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import openai
import pytest

from assay.inference.protocol import Completion, SamplingParams
from assay.workflows.export.chat import run_to_talk_with
from integration.test_inference import SFT, trained_job
from integration.test_language_export import conversations
from integration.test_serving import Here
from slurm_cluster import wait_until

__all__ = ["conversations"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
NUM_ITEMS, MAX_TOKENS, SEED = 500, 6, 11
LONGEST_S = 400
"""A dead worker is missed after twenty seconds, and torch is imported once more."""


class Chatting(Here):
    """A server with a model that writes."""

    def __init__(self, folder: Path, conversations: Path) -> None:
        super().__init__(folder)
        self.model, self.run = trained_job(self.home, conversations, SFT, "supervised")
        self.server, self.sdk = self.serve()

    @cached_property
    def expected(self) -> list[str]:
        """The completions of `QUESTIONS` by the model without a server."""
        local = run_to_talk_with(self.home, self.run.run_id, step=4, tokenizer=None)
        output = local.generate(
            [[{"role": "user", "content": question}] for question in QUESTIONS],
            SamplingParams(temperature=1.0, max_tokens=MAX_TOKENS, seed=SEED),
        )
        assert all(isinstance(item, Completion) for item in output)
        return [item.text for item in output if isinstance(item, Completion)]


@pytest.fixture(scope="module")
def chatting(tmp_path_factory, conversations) -> Iterator[Chatting]:
    found = Chatting(tmp_path_factory.mktemp("chatting"), conversations)
    try:
        yield found
    finally:
        found.end()


QUESTIONS = [f"{n} plus {n % 7}" for n in range(NUM_ITEMS)]


def test_an_eval_of_a_trained_model_survives_the_kill_of_its_worker(chatting: Chatting) -> None:
    sdk, expected = chatting.sdk, chatting.expected
    # A file may hold no U+0000, which the tiny model writes.
    is_right = [bool(n % 3) and "\0" not in text for n, text in enumerate(expected)]
    rights = [text.strip() if right else "none" for text, right in zip(expected, is_right, strict=True)]
    evaluation = sdk.evals.create(
        data_source_config={
            "type": "custom", "include_sample_schema": True,
            "item_schema": {"type": "object", "required": ["question", "right"]},
        },
        testing_criteria=[
            {"type": "string_check", "name": "exact", "input": "{{ sample.output_text }}",
             "reference": "{{ item.right }}", "operation": "eq"},
        ],
    )  # fmt: skip
    lines = [{"item": {"question": q, "right": right}} for q, right in zip(QUESTIONS, rights, strict=True)]
    file = sdk.files.create(file=("items.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="evals")
    run = sdk.evals.runs.create(
        evaluation.id,
        data_source={
            "type": "completions", "model": chatting.model, "source": {"type": "file_id", "id": file.id},
            "input_messages": {
                "type": "template", "template": [{"role": "user", "content": "{{ item.question }}"}],
            },
            "sampling_params": {"max_completion_tokens": MAX_TOKENS, "temperature": 1, "seed": SEED},
        },
    )  # fmt: skip

    def now():
        return sdk.evals.runs.retrieve(run.id, eval_id=evaluation.id)

    def num_graded() -> int:
        counts = now().result_counts
        return counts.passed + counts.failed + counts.errored

    worker = chatting.work()
    wait_until(num_graded, "a first chunk", LONGEST_S)
    chatting.kill(worker)
    graded = num_graded()
    print("graded before the kill:", graded)
    assert graded < NUM_ITEMS
    assert chatting.work("--until-idle").wait(LONGEST_S) == 0
    done = now()
    assert done.status == "completed", done.error
    items = [*sdk.evals.runs.output_items.list(run.id, eval_id=evaluation.id, limit=17)]
    assert [item.datasource_item_id for item in items] == [*range(NUM_ITEMS)]
    assert [item.sample.output[0].content for item in items] == expected
    assert [item.status for item in items] == ["pass" if right else "fail" for right in is_right]
    num_wrong = is_right.count(False)
    assert (done.result_counts.failed, done.result_counts.errored) == (num_wrong, 0)
    with chatting.home.open_ledger() as ledger:
        (held,) = ledger.phase_seconds(run.id)
    assert done.x_assay["charged_device_hours"] == pytest.approx(held.held_s / 3600, rel=1e-9)
    assert 0 < held.held_s < time.time() - run.created_at
    (usage,) = done.per_model_usage
    assert (usage.model_name, usage.invocation_count) == (chatting.model, NUM_ITEMS)


def test_a_batch_survives_the_kill_of_server_and_worker(chatting: Chatting) -> None:
    sdk, expected = chatting.sdk, chatting.expected
    url = "/v1/chat/completions"
    lines = [
        {
            "custom_id": f"r{n}", "method": "POST", "url": url,
            "body": {
                "model": chatting.model, "messages": [{"role": "user", "content": question}],
                "max_completion_tokens": MAX_TOKENS if n else 4000, "seed": SEED,
            },
        }
        for n, question in enumerate(QUESTIONS)
    ]  # fmt: skip
    file = sdk.files.create(file=("requests.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
    batch = sdk.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h")
    worker = chatting.work()
    wait_until(lambda: sdk.batches.retrieve(batch.id).request_counts.completed, "a first chunk", LONGEST_S)
    chatting.kill(worker, chatting.server)
    chatting.server, chatting.sdk = chatting.serve()
    sdk = chatting.sdk
    completed = sdk.batches.retrieve(batch.id).request_counts.completed
    print("answered before the kill:", completed)
    assert completed < NUM_ITEMS - 1
    assert chatting.work("--until-idle").wait(LONGEST_S) == 0
    done = sdk.batches.retrieve(batch.id)
    counts = done.request_counts
    assert (done.status, counts.completed, counts.failed) == ("completed", NUM_ITEMS - 1, 1), done.errors
    found = [json.loads(line) for line in sdk.files.content(done.output_file_id).text.splitlines()]
    assert [item["custom_id"] for item in found] == [f"r{n}" for n in range(1, NUM_ITEMS)]
    output = [item["response"]["body"]["choices"][0]["message"]["content"] for item in found]
    assert output == expected[1:]
    (refused,) = [json.loads(line) for line in sdk.files.content(done.error_file_id).text.splitlines()]
    assert refused["custom_id"] == "r0"
    assert refused["response"]["body"]["error"]["code"] == "context_length_exceeded"


def test_a_worker_that_is_told_to_leave_leaves_soon_and_without_its_models(chatting: Chatting) -> None:
    sdk = chatting.sdk
    rows = [{"item": {"q": f"q {n}"}} for n in range(2000)]
    evaluation = sdk.evals.create(
        data_source_config={"type": "custom", "item_schema": {}, "include_sample_schema": True},
        testing_criteria=[
            {"type": "string_check", "name": "x", "input": "{{ sample.output_text }}", "reference": "",
             "operation": "ne"},
        ],
    )  # fmt: skip
    run = sdk.evals.runs.create(
        evaluation.id,
        data_source={
            "type": "completions", "model": chatting.model,
            "source": {"type": "file_content", "content": rows},
            "input_messages": {"type": "template", "template": [{"role": "user", "content": "{{ item.q }}"}]},
            "sampling_params": {"max_completion_tokens": 60},
        },
    )  # fmt: skip
    worker = chatting.work()
    assert worker.stderr is not None and worker.stderr.readline().startswith("processing jobs of ")
    wait_until(
        lambda: sdk.evals.runs.retrieve(run.id, eval_id=evaluation.id).status == "in_progress",
        "its rows",
        LONGEST_S,
    )
    time.sleep(1.0)
    began_s = time.monotonic()
    worker.terminate()
    assert worker.wait(20) == 0
    print("left after", time.monotonic() - began_s)
    assert sdk.evals.runs.cancel(run.id, eval_id=evaluation.id).status == "canceled"
    with pytest.raises(openai.NotFoundError):
        sdk.evals.runs.retrieve(run.id, eval_id="eval-x")
