"""A checkpoint that is shared, evaluated or asked stays whatever its run retires; one that is gone is a 404."""

import json

import openai
import pytest

from assay.serving.engines.pool import EnginePool
from assay.serving.ids import checkpoint_name
from assay.serving.retention import CheckpointKeeper
from parrot_engine import ParrotEngine
from parrot_models import work, worker_of
from served import place_in, sdk_of
from simulation.test_kept_checkpoints import STEP, Run
from unit.serving.test_jobs import LAUNCHED, PLANNED, VALIDATED, checkpoint, create, happens

HELLO = [{"role": "user", "content": "hello"}]
CRITERION = {
    "type": "string_check", "name": "c", "input": "{{ sample.output_text }}", "reference": "HI",
    "operation": "eq",
}  # fmt: skip


async def parrot() -> ParrotEngine:
    return ParrotEngine()


class Kept:
    """A server, and a job at work with one checkpoint, which the run's next commit makes superfluous."""

    def __init__(self, folder) -> None:
        self.run = Run()
        place = place_in(folder, method="supervised")
        keeper = CheckpointKeeper(lambda _: self.run.inner, place.clock)
        self.place = place._replace(keeper=keeper, engines=EnginePool(parrot, most=1))
        self.place.projects.ensure("vision", by="")
        self.sdk = sdk_of(self.place)
        job = create(self.sdk)
        happens(self.place, job.id, VALIDATED, PLANNED, LAUNCHED, checkpoint(STEP))
        state = self.place.jobs.shelf.state(job.id)
        assert state is not None
        self.model = checkpoint_name(state.model, STEP)

    def share(self) -> str:
        created = self.sdk.fine_tuning.checkpoints.permissions.create(self.model, project_ids=["vision"])
        return created.data[0].id

    def evaluate(self):
        evaluation = self.sdk.evals.create(
            data_source_config={"type": "custom", "item_schema": {}, "include_sample_schema": True},
            testing_criteria=[CRITERION],
        )
        return self.sdk.evals.runs.create(
            evaluation.id,
            data_source={
                "type": "completions", "model": self.model,
                "source": {"type": "file_content", "content": [{"item": {"q": "hi"}}]},
                "input_messages": {
                    "type": "template", "template": [{"role": "user", "content": "{{ item.q }}"}],
                },
            },
        )  # fmt: skip

    def ask(self) -> None:
        self.sdk.chat.completions.create(model=self.model, messages=HELLO)

    def batch(self) -> None:
        url = "/v1/chat/completions"
        line = {
            "custom_id": "r",
            "method": "POST",
            "url": url,
            "body": {"model": self.model, "messages": HELLO},
        }
        file = self.sdk.files.create(file=("b.jsonl", json.dumps(line).encode()), purpose="batch")
        self.sdk.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h")


@pytest.fixture
def kept(tmp_path) -> Kept:
    return Kept(tmp_path)


ACTS = ["share", "evaluate", "ask", "batch"]


@pytest.mark.parametrize("act", ACTS)
def test_a_checkpoint_that_somebody_relies_on_stays(kept, act):
    getattr(kept, act)()
    for step in (STEP + 1, STEP + 2):
        kept.run.commits(kept.run.inner, step)
    assert kept.run.has_it()
    kept.ask()


@pytest.mark.parametrize("act", ACTS)
def test_one_that_is_gone_is_a_404_and_nothing_is_made(kept, act):
    kept.run.commits(kept.run.inner, STEP + 1)
    assert not kept.run.has_it()
    with pytest.raises(openai.NotFoundError, match="is gone: its run has newer checkpoints"):
        getattr(kept, act)()
    assert kept.place.permissions.of(kept.model) == []
    assert kept.place.eval_runs.shelf.is_empty() and kept.place.batches.shelf.is_empty()


def test_a_permission_that_is_revoked_keeps_nothing(kept):
    permission, again = kept.share(), kept.share()
    assert permission == again
    permissions = kept.sdk.fine_tuning.checkpoints.permissions
    permissions.delete(permission, fine_tuned_model_checkpoint=kept.model)
    kept.run.commits(kept.run.inner, STEP + 1)
    assert not kept.run.has_it()


def test_an_eval_run_keeps_what_it_asked_until_it_is_deleted(kept):
    run = kept.evaluate()
    worker = worker_of(kept.place)
    work(worker)
    kept.run.commits(kept.run.inner, STEP + 1)
    assert kept.run.has_it() and kept.sdk.evals.runs.retrieve(run.id, eval_id=run.eval_id).status == "completed"
    kept.sdk.evals.runs.delete(run.id, eval_id=run.eval_id)
    work(worker)
    kept.run.commits(kept.run.inner, STEP + 2)
    assert not kept.run.has_it()
