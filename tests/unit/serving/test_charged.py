"""Runs of evals and batches are charged to their project, chunk by chunk, and wait once its limit is spent."""

import json

import pytest

from assay.serving.openai.app_state import AppState
from assay.store.home import Home
from assay.store.objects import ObjectStore, open_store
from assay.workflows.rebuild import SOURCES_OF_A_HOME
from parrot_models import SlowModels, work, worker_of
from served import app_in
from unit.serving.admin.test_admin import START_S, limit, sdk_with

ITEMS, AT_ONCE, REQUEST_S = 5, 2, 1800.0
CRITERION = {
    "type": "string_check", "name": "c", "input": "{{ sample.output_text }}", "reference": "",
    "operation": "ne",
}  # fmt: skip


class World:
    """A server, the project `ours`, and a worker whose models take half an hour for an ask."""

    def __init__(self, folder, store: ObjectStore | None = None) -> None:
        self.app: AppState = app_in(folder, store, method="supervised")
        self.app.projects.ensure("ours", by="me")
        secrets = [
            self.app.keys.make(project=project, name="", scopes=scopes, lives_s=None).secret
            for project, scopes in (("ours", ("read", "write")), ("default", ("admin",)))
        ]
        self.sdk = sdk_with(self.app, *secrets)
        self.worker = worker_of(self.app, SlowModels(self.app.clock, REQUEST_S), at_once=AT_ONCE)

    def eval_run(self):
        evaluation = self.sdk.evals.create(
            data_source_config={"type": "custom", "item_schema": {}, "include_sample_schema": True},
            testing_criteria=[CRITERION],
        )
        rows = [{"item": {"q": f"q{n}"}} for n in range(ITEMS)]
        requested = {"type": "template", "template": [{"role": "user", "content": "{{ item.q }}"}]}
        source = {
            "type": "completions", "model": "tiny", "source": {"type": "file_content", "content": rows},
            "input_messages": requested, "sampling_params": {"max_completion_tokens": 3},
        }  # fmt: skip
        return self.sdk.evals.runs.create(evaluation.id, data_source=source)

    def batch(self):
        url = "/v1/completions"
        lines = [
            {"custom_id": f"r{n}", "method": "POST", "url": url, "body": {"model": "tiny", "prompt": "q"}}
            for n in range(ITEMS)
        ]
        file = self.sdk.files.create(file=("b", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
        return self.sdk.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h")

    def now(self, run):
        return self.sdk.evals.runs.retrieve(run.id, eval_id=run.eval_id)

    def costs_h(self, **kwargs) -> float:
        page = self.sdk.admin.organization.usage.costs(start_time=START_S, limit=30, **kwargs)
        return sum(result.quantity for bucket in page.data for result in bucket.results)

    def looks(self, times: int) -> None:
        for _ in range(times):
            self.worker.poll()
            self.app.clock.sleep_s(30.0)


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


def test_costs_of_evals_and_batches_are_those_of_their_chunks_and_of_the_ledger(tmp_path) -> None:
    home = Home.at(tmp_path / "home")
    world = World(tmp_path, open_store(str(home.api)))
    run, batch = world.eval_run(), world.batch()
    work(world.worker)
    in_run, in_batch = 3 * REQUEST_S / 3600, ITEMS * REQUEST_S / 3600
    assert world.costs_h(line_items=[run.id]) == pytest.approx(in_run, rel=1e-9)
    assert world.costs_h(line_items=[batch.id]) == pytest.approx(in_batch, rel=1e-9)
    assert world.costs_h(project_ids=["ours"]) == world.costs_h() == pytest.approx(in_run + in_batch)
    assert world.now(run).x_assay == {
        "finished_at": pytest.approx(world.app.clock.now_s(), abs=20_000),
        "charged_device_hours": pytest.approx(in_run),
        "blocked_by": None,
    }
    completed = world.sdk.batches.retrieve(batch.id).to_dict()
    assert completed["x_assay"]["charged_device_hours"] == pytest.approx(in_batch)  # type: ignore[index]
    world.sdk.evals.runs.delete(run.id, eval_id=run.eval_id)
    work(world.worker)
    assert world.costs_h() == pytest.approx(in_run + in_batch)  # what is spent is spent
    with home.open_ledger() as ledger:
        for source in SOURCES_OF_A_HOME:
            source.write(ledger, home)
        held_s = {second.run_id: second.held_s for second in ledger.phase_seconds()}
    assert held_s == {run.id: pytest.approx(in_run * 3600), batch.id: pytest.approx(in_batch * 3600)}


def test_a_spent_limit_lets_nothing_more_be_asked_until_it_is_raised(world) -> None:
    limit(world.sdk, "ours", 60)  # 0.6 hours: the second half hour is the last
    run, batch = world.eval_run(), world.batch()
    world.looks(12)
    status = world.sdk.admin.organization.projects.spend_limit.retrieve("ours")
    assert status.enforcement.status == "enforcing"
    spent_h = world.costs_h()
    assert 0.6 <= spent_h <= 0.6 + 2 * REQUEST_S / 3600  # at most the chunk that was begun
    waiting, why = world.now(run), "its limit is 0.6. It continues when the limit is raised"
    found = world.sdk.batches.retrieve(batch.id)
    assert {waiting.status, found.status} == {"in_progress"}
    assert why in waiting.x_assay["blocked_by"] and why in found.x_assay["blocked_by"]
    world.looks(3)
    assert world.costs_h() == spent_h
    limit(world.sdk, "ours", 1000)
    work(world.worker)
    assert (world.now(run).status, world.sdk.batches.retrieve(batch.id).status) == ("completed", "completed")


def test_what_waits_for_its_projects_limit_is_cancelled_or_expires_all_the_same(world) -> None:
    limit(world.sdk, "ours", 1)
    first, second = world.batch(), world.batch()
    run = world.eval_run()
    world.looks(8)
    assert world.now(run).status == "in_progress"
    assert world.sdk.evals.runs.cancel(run.id, eval_id=run.eval_id).status == "canceled"
    world.sdk.batches.cancel(first.id)
    world.looks(4)
    assert world.sdk.batches.retrieve(first.id).status == "cancelled"
    world.app.clock.sleep_s(86_400)
    world.looks(4)
    assert world.sdk.batches.retrieve(second.id).status == "expired"


def test_another_projects_limit_keeps_nobody(world) -> None:
    world.app.projects.ensure("theirs", by="me")
    limit(world.sdk, "theirs", 1)
    run = world.eval_run()
    work(world.worker)
    assert world.now(run).status == "completed"
