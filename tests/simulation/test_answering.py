"""Runs of evals and batches over their whole life, server and worker by turns, the power cut at every write.

Whatever happens, each item has one result and each request one answer, nothing that is durable is made again,
what it took is charged once, and there is one end.
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from assay.base.digest import sha256_of_bytes
from assay.base.errors import FencedError, NotInstalledError
from assay.inference.protocol import GenerateRequest
from assay.records.batch import BatchCreated
from assay.records.eval_run import EvalChunk, EvalCreated, EvalRunCreated
from assay.records.uploaded_file import FileCreated
from assay.records.webhook import WebhookCreated
from assay.serving.admin.spend import ChargedResources, DayCost, costs_of_day, day_of, days_between
from assay.serving.api_error import ApiError
from assay.serving.batches.batches import BatchRepository, BatchState
from assay.serving.evals.evals import EvalRepository
from assay.serving.evals.runs import EvalRunRepository, EvalRunState
from assay.serving.files import FileRepository
from assay.serving.retention import CheckpointRetention
from assay.serving.webhooks.outbox import Outbox
from assay.serving.webhooks.webhooks import EVENT_TYPES, WebhookRepository
from assay.store.leased_worker import LeasedWorker
from assay.store.objects import ObjectStore, open_store
from assay.workers.batch.batch_handler import BatchHandler
from assay.workers.batch.eval_run_handler import EvalRunHandler, EvalRunLog
from assay.workers.batch.task_handler import TaskHandler
from clocks import ManualClock
from parrot_models import ParrotModels, SlowModels
from power_cut_store import PowerCut, PowerCutStore
from variants import slow, soaked

DIGITS = "0" * 24
ITEMS, AT_ONCE, LOOK_S, MAX_LOOKS = 5, 2, 7.0, 400
REQUEST_S, NOON_S = 40_000.0, 43_200.0
"""What an ask takes: so long that most chunks are made over midnight. When a world begins."""
WEBHOOK = WebhookCreated(
    webhook_id="webhook-" + DIGITS, project="p", name="w", url="https://w.example", event_types=EVENT_TYPES,
    secret="whsec_", at_s=0.0, request_sha256="",
)  # fmt: skip
CRITERION = {
    "type": "string_check", "name": "loud", "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}", "operation": "eq",
}  # fmt: skip
EVAL = EvalCreated(
    eval_id="eval-" + DIGITS, project="p", at_s=0.0, name="e", item_schema={}, has_samples=True,
    testing_criteria=(CRITERION,), request_sha256="",
)  # fmt: skip
ROWS = [{"item": {"question": f"q{n}", "answer": "Q0" if n == 1 else f"Q{n}"}} for n in range(ITEMS)]
RUN = EvalRunCreated(
    run_id="evalrun-" + DIGITS, eval_id=EVAL.eval_id, project="p", at_s=0.0, name="r", item_schema={},
    testing_criteria=(CRITERION,), model="m", sources={"m": {"run_id": "r"}}, request_sha256="",
    data_source={
        "type": "completions", "model": "m", "source": {"type": "file_content", "content": ROWS},
        "input_messages": {
            "type": "template", "template": [{"role": "user", "content": "{{ item.question }}"}],
        },
        "sampling_params": {"max_completion_tokens": 3},
    },
)  # fmt: skip


class EvalWorld:
    """One store and one run, over as many lives of server and worker as it takes."""

    def __init__(self, work_class: type[EvalRunHandler] = EvalRunHandler) -> None:
        self.inner = open_store("memory:")
        self.clock = ManualClock(NOON_S)
        self.models: ParrotModels = SlowModels(self.clock, REQUEST_S)
        self.work_class = work_class
        WebhookRepository(self.inner, self.clock).put(WEBHOOK)

    def lives(self, store: ObjectStore, *, cancels: bool) -> None:
        """One life, until the run is over and told of, or the power is cut."""
        evals, runs = EvalRepository(store, self.clock), EvalRunRepository(store, self.clock)
        worker = LeasedWorker(store, [self.handler(store)], name="w", clock=self.clock, slice_s=20.0)
        try:
            for _ in range(MAX_LOOKS):
                evals.put(EVAL)
                state = runs.find(RUN.run_id, "p") or runs.put(RUN)
                if cancels and state.charges and not state.has_ended:
                    runs.cancel(RUN.run_id)
                if not worker.poll():
                    if not runs.open_ids():
                        break
                    self.clock.sleep_s(LOOK_S)
            worker.leave()
        except BaseException:
            while worker._held:
                with suppress(PowerCut):
                    worker.leave()
            raise

    def handler(self, store: ObjectStore) -> TaskHandler[Any, Any, Any]:
        return self.work_class(
            EvalRepository(store, self.clock),
            EvalRunRepository(store, self.clock),
            FileRepository(store, self.clock),
            self.models,
            Outbox(store, self.clock),
            CheckpointRetention(None, self.clock),
            clock=self.clock,
            chunk_items=AT_ONCE,
        )

    def state(self) -> EvalRunState:
        state = EvalRunRepository(self.inner, self.clock).find(RUN.run_id, "p")
        assert state is not None
        return state

    def requests(self) -> Counter[str]:
        """How often each question was put."""
        return Counter(
            prompt.messages[0]["content"]
            for request in self.models.engine.requests
            if isinstance(request, GenerateRequest)
            for prompt in request.prompts
            if prompt.messages
        )


def kinds(store: ObjectStore, folder: str) -> Counter[str]:
    """The entries of a log, by type."""
    return Counter(json.loads(store.get(item.key))["type"] for item in store.list(f"{folder}/log/"))


def charged(world: "EvalWorld | BatchWorld") -> list[DayCost]:
    """What the API says of all days."""
    runs, batches = EvalRunRepository(world.inner, world.clock), BatchRepository(world.inner, world.clock)
    tasks = ChargedResources(runs, batches)
    days = days_between(day_of(0.0), day_of(world.clock.now_s()) + timedelta(days=1))
    return [cost for day in days for cost in costs_of_day(tasks, day)]


def check_eval(world: EvalWorld, *, cuts: int, cancels: bool) -> None:
    state, runs = world.state(), EvalRunRepository(world.inner, world.clock)
    found = kinds(world.inner, f"evalrun/{RUN.run_id}")
    assert state.read is not None and state.read.num_items == ITEMS
    assert (found["created"], found["read"], found["failed"]) == (1, 1, 0)
    assert found["completed"] + found["cancel"] == 1 and state.status == ("canceled" if cancels else "completed")
    chunks = [runs.find_chunk(RUN.run_id, number) for number in range(len(state.charges))]
    items = [item for chunk in chunks for item in (chunk.items if chunk else ())]
    assert [item.index for item in items] == [*range(len(items))]  # each once
    assert cancels or len(items) == ITEMS
    assert [item.status for item in items] == ["fail" if n == 1 else "pass" for n in range(len(items))]
    assert (state.counts.passed, state.counts.failed) == (len(items) - 1, 1)
    assert state.usage["m"].invocations == len(items)
    costs = charged(world)
    assert {(cost.project, cost.resource_id) for cost in costs} == {("p", RUN.run_id)}
    assert cancels or len(costs) > 1  # over midnight
    assert sum(cost.device_s for cost in costs) == pytest.approx(len(state.charges) * REQUEST_S, rel=1e-12)
    for number, times in world.requests().items():
        assert times <= 1 + cuts, (number, times)
    assert [*world.inner.list("open/evalrun/")] == []
    (message,) = Outbox(world.inner, world.clock).due()
    assert message.created.event_type == f"eval.run.{'canceled' if cancels else 'succeeded'}"


def simulate(world: Any, cuts: list[int], seed: int, *, cancels: bool = False) -> Any:
    """A world in which the power is cut at these writes of its lives, in turn, and then no more."""
    rng = random.Random(seed)
    for cut in [*cuts, 100_000]:
        with suppress(PowerCut):
            world.lives(PowerCutStore(world.inner, writes_left=cut, rng=rng), cancels=cancels)
            return world
    raise AssertionError(f"{cuts}, seed {seed}: no end")


def num_writes(begin: Callable[[], Any], *, cancels: bool) -> int:
    """Of a life that nothing disturbs."""
    world = begin()
    counting = PowerCutStore(world.inner, writes_left=100_000, rng=random.Random(0))
    world.lives(counting, cancels=cancels)
    return 100_000 - counting._writes_left


@pytest.mark.parametrize("cancels", [False, *slow(True)])
def test_the_power_is_cut_at_every_write_of_an_eval_runs_life(cancels: bool) -> None:
    writes = num_writes(EvalWorld, cancels=cancels)
    assert writes > 15
    for cut in range(writes):
        check_eval(simulate(EvalWorld(), [cut], cut, cancels=cancels), cuts=1, cancels=cancels)


@pytest.mark.parametrize("seed", [*range(2), *soaked(*range(2, 300))])
def test_the_power_is_cut_at_several_writes_of_an_eval_run(seed: int) -> None:
    rng = random.Random(seed)
    cuts = [rng.randrange(25) for _ in range(rng.randrange(2, 5))]
    check_eval(simulate(EvalWorld(), cuts, seed), cuts=len(cuts), cancels=False)


BATCH = BatchCreated(
    batch_id="batch-" + DIGITS, project="p", at_s=0.0, endpoint="/v1/completions",
    input_file_id="file-" + DIGITS,    model="m", source={"run_id": "r"}, expires_s=1e9, request_sha256="",
)  # fmt: skip
REQUESTS = [
    {"custom_id": f"r{n}", "method": "POST", "url": BATCH.endpoint, "body": {"model": "m", "prompt": f"q{n}"}}
    for n in range(ITEMS)
]
LINES = "\n".join(map(json.dumps, REQUESTS)).encode()
FILE = FileCreated(
    file_id="file-" + DIGITS, project="p", at_s=0.0, filename="f", purpose="batch", num_bytes=len(LINES),
    sha256=sha256_of_bytes(LINES),
    content="file-" + "1" * 24,
)  # fmt: skip


class OneRefusing(SlowModels):
    """Does not take the second question."""

    def run(self, source, work):
        question = work.args[0]
        if question.prompt == "q1":
            raise ApiError("too long", code="context_length_exceeded")
        return super().run(source, work)


class BatchWorld:
    """One store and one batch, over as many lives of server and worker as it takes."""

    def __init__(self) -> None:
        self.inner = open_store("memory:")
        self.clock = ManualClock(NOON_S)
        self.models = OneRefusing(self.clock, REQUEST_S)
        WebhookRepository(self.inner, self.clock).put(WEBHOOK)
        files = FileRepository(self.inner, self.clock)
        sink = files.sink(FILE.content)
        sink.write(LINES)
        sink.finish()
        files.put(FILE)

    def lives(self, store: ObjectStore, *, cancels: bool) -> None:
        """See `EvalWorld`."""
        batches = BatchRepository(store, self.clock)
        worker = LeasedWorker(store, [self.handler(store)], name="w", clock=self.clock, slice_s=20.0)
        try:
            for _ in range(MAX_LOOKS):
                state = batches.find(BATCH.batch_id, "p") or batches.put(BATCH)
                if cancels and state.charges and state.gathering is None:
                    batches.cancel(BATCH.batch_id)
                if not worker.poll():
                    if not batches.open_ids():
                        break
                    self.clock.sleep_s(LOOK_S)
            worker.leave()
        except BaseException:
            while worker._held:
                with suppress(PowerCut):
                    worker.leave()
            raise

    def handler(self, store: ObjectStore) -> TaskHandler[Any, Any, Any]:
        return BatchHandler(
            BatchRepository(store, self.clock),
            FileRepository(store, self.clock),
            self.models,
            Outbox(store, self.clock),
            clock=self.clock,
            chunk_requests=AT_ONCE,
        )

    def requests(self) -> Counter[str | None]:
        """How often each question was put."""
        return Counter(prompt.text for request in self.models.engine.requests for prompt in request.prompts)

    def state(self) -> BatchState:
        state = BatchRepository(self.inner, self.clock).find(BATCH.batch_id, "p")
        assert state is not None
        return state


def check_batch(world: BatchWorld, *, cuts: int, cancels: bool) -> None:
    state = BatchRepository(world.inner, world.clock).find(BATCH.batch_id, "p")
    assert state is not None and state.ended is not None
    found = kinds(world.inner, f"batch/{BATCH.batch_id}")
    assert [found[element] for element in ("created", "read", "gathering", "ended", "failed")] == [1, 1, 1, 1, 0]
    assert state.status == ("cancelled" if cancels else "completed") and found["cancel"] == cancels
    files = FileRepository(world.inner, world.clock)
    ids = (state.ended.output_file_id, state.ended.error_file_id)
    output, errors = ([json.loads(line) for line in files.lines(id_)] for id_ in ids if id_ is not None)
    completed = range(state.num_processed)
    assert [element["custom_id"] for element in output] == [f"r{n}" for n in completed if n != 1]
    assert [error["custom_id"] for error in errors] == ["r1"]
    assert cancels or state.num_processed == ITEMS
    texts = [element["response"]["body"]["choices"][0]["text"] for element in output]
    assert texts == [f" Q{n}" for n in completed if n != 1]
    assert max(world.requests().values()) <= 1 + cuts
    took_s = REQUEST_S * (state.num_processed - 1)  # one was refused at once
    assert sum(element.device_s for element in charged(world)) == pytest.approx(took_s, rel=1e-12)
    assert files.ids() == sorted({FILE.file_id, *filter(None, ids)})  # none is left beside them
    left = [
        item.key for prefix in ("open/batch/", f"batch/{BATCH.batch_id}/answers/") for item in world.inner.list(prefix)
    ]
    assert left == []
    (message,) = Outbox(world.inner, world.clock).due()
    assert message.created.event_type == f"batch.{state.status}"


@pytest.mark.parametrize("cancels", [False, *slow(True)])
def test_the_power_is_cut_at_every_write_of_a_batchs_life(cancels: bool) -> None:
    writes = num_writes(BatchWorld, cancels=cancels)
    assert writes > 15
    for cut in range(writes):
        check_batch(simulate(BatchWorld(), [cut], cut, cancels=cancels), cuts=1, cancels=cancels)


@pytest.mark.parametrize("seed", [*range(2), *soaked(*range(2, 300))])
def test_the_power_is_cut_at_several_writes_of_a_batch(seed: int) -> None:
    rng = random.Random(seed)
    cuts = [rng.randrange(30) for _ in range(rng.randrange(2, 5))]
    check_batch(simulate(BatchWorld(), cuts, seed), cuts=len(cuts), cancels=False)


class EntryFirst(EvalRunHandler):
    """Known to be bad: says that a chunk is graded before its results are there."""

    def _grade(self, state, read, log):
        put, retained = self._runs.put_chunk, []

        def later(run_id: str, number: int, chunk: EvalChunk) -> EvalChunk:
            retained.append((run_id, number, chunk))
            return chunk

        self._runs.put_chunk = later  # type: ignore[method-assign]
        try:
            super()._grade(state, read, log)
        finally:
            self._runs.put_chunk = put  # type: ignore[method-assign]
        for item in retained:
            put(*item)


class Forgetful(EvalRunHandler):
    """Known to be bad: grades a chunk again though its results are there, and overwrites them."""

    def _grade(self, state, read, log):
        self._runs.forget_chunks(state.created.run_id)
        super()._grade(state, read, log)


@pytest.mark.parametrize("bad", [EntryFirst, Forgetful])
def test_a_worker_that_is_known_to_be_bad_is_caught(bad: type[EvalRunHandler]) -> None:
    def is_caught(cut: int) -> bool:
        try:
            check_eval(simulate(EvalWorld(bad), [cut], cut), cuts=1, cancels=False)
        except AssertionError:
            return True
        return False

    assert any(is_caught(cut) for cut in range(12, 20))


@pytest.mark.parametrize("world_class", [EvalWorld, BatchWorld])
def test_a_worker_whose_lease_was_lost_adds_nothing(world_class: type[EvalWorld] | type[BatchWorld]) -> None:
    world = world_class()
    if isinstance(world, EvalWorld):
        EvalRepository(world.inner, world.clock).put(EVAL)
        EvalRunRepository(world.inner, world.clock).put(RUN)
    else:
        BatchRepository(world.inner, world.clock).put(BATCH)
    late, quick = (
        LeasedWorker(world.inner, [world.handler(world.inner)], name=name, clock=world.clock, slice_s=20.0)
        for name in ("late", "quick")
    )
    assert late.poll() and world.state().lease == 1
    while world.state().lease < 2:  # the late one does not beat: its thread waits for seconds that are real
        quick.poll()
        world.clock.sleep_s(LOOK_S)
    before, (held,) = world.state(), late._held.values()
    with pytest.raises(FencedError):
        held.handler.step(held.unit, held.lease)
    assert world.state() == before
    late.leave()
    while quick.poll():
        pass
    quick.leave()
    assert world.state().status == "completed"


@pytest.mark.parametrize(
    ("world_class", "chunks", "entry"),
    [
        (EvalWorld, f"evalrun/{RUN.run_id}/items/", (f"evalrun/{RUN.run_id}", "graded")),
        (BatchWorld, f"batch/{BATCH.batch_id}/answers/", (f"batch/{BATCH.batch_id}", "answered")),
    ],
)
def test_what_a_chunk_has_is_not_asked_for_again(
    world_class: type[EvalWorld] | type[BatchWorld], chunks: str, entry: tuple[str, str]
) -> None:
    """The power is cut behind a chunk, before its entry."""
    log, kind = entry
    cut_so = 0
    for cut in range(num_writes(world_class, cancels=False)):
        world = world_class()
        with pytest.raises(PowerCut):
            world.lives(PowerCutStore(world.inner, writes_left=cut, rng=random.Random(cut)), cancels=False)
        num_chunks = sum(1 for _ in world.inner.list(chunks))
        if num_chunks > kinds(world.inner, log)[kind]:
            cut_so += 1
            request = world.requests()
            assert len(request) <= num_chunks * AT_ONCE
            world.lives(world.inner, cancels=False)
            assert {item: world.requests()[item] for item in request} == dict(request)
    assert cut_so > 0


def test_projects_take_turns_while_others_wait() -> None:
    world = EvalWorld()
    store = world.inner
    evals, runs = EvalRepository(store, world.clock), EvalRunRepository(store, world.clock)
    for number, project in enumerate(["a", "a", "b"]):
        digits = f"{number:024x}"
        evals.put(EVAL.model_copy(update={"eval_id": f"eval-{digits}", "project": project}))
        changes = {"run_id": f"evalrun-{digits}", "eval_id": f"eval-{digits}", "project": project}
        runs.put(RUN.model_copy(update=changes))
    worker = LeasedWorker(store, [world.handler(store)], name="w", clock=world.clock, slice_s=10.0)
    turns = []
    while worker.poll():
        world.clock.sleep_s(LOOK_S)
        (unit_id,) = worker._held
        if [unit_id[-1]] != turns[-1:]:
            turns.append(unit_id[-1])
    worker.leave()
    assert turns[:4] == ["0", "2", "0", "2"] and sorted(set(turns)) == ["0", "1", "2"]


class LackingWork(EvalRunHandler):
    """On a machine without a package that a criterion needs."""

    def advance(self, state: EvalRunState, log: EvalRunLog) -> None:
        raise NotInstalledError("math-verify is not installed.")


def test_a_run_is_left_to_others_by_a_worker_that_lacks_a_package() -> None:
    world, output = EvalWorld(LackingWork), list[str]()
    EvalRepository(world.inner, world.clock).put(EVAL)
    EvalRunRepository(world.inner, world.clock).put(RUN)
    lacking = LeasedWorker(
        world.inner, [world.handler(world.inner)], name="w", clock=world.clock, slice_s=20.0, notify=output.append
    )
    assert [lacking.poll() for _ in range(3)] == [True, False, False]
    assert output == [f"{RUN.run_id} is left to other workers for 60 s: math-verify is not installed."]
    world.work_class = EvalRunHandler
    able = LeasedWorker(world.inner, [world.handler(world.inner)], name="v", clock=world.clock, slice_s=20.0)
    while able.poll():
        pass
    able.leave()
    assert world.state().status == "completed"
