"""A checkpoint that is shared, evaluated or asked stays whatever its run retires; one that is gone is a 404."""

import json

import openai
import pytest

from assay.serving.engines.pool import EnginePool
from assay.serving.ids import checkpoint_name
from assay.serving.retention import CheckpointRetention
from parrot_engine import ParrotEngine
from parrot_models import work, worker_of
from served import app_in, sdk_of
from simulation.test_kept_checkpoints import STEP, Run
from unit.serving.test_jobs import LAUNCHED, PLANNED, VALIDATED, checkpoint, create, happens

HELLO = [{"role": "user", "content": "hello"}]
CRITERION = {
    "type": "string_check", "name": "c", "input": "{{ sample.output_text }}", "reference": "HI",
    "operation": "eq",
}  # fmt: skip


async def parrot() -> ParrotEngine:
    return ParrotEngine()


class Retained:
    """A server, and a job at work with one checkpoint, which the run's next commit makes superfluous."""

    def __init__(self, folder) -> None:
        self.run = Run()
        app = app_in(folder, method="supervised")
        retention = CheckpointRetention(lambda _: self.run.inner, app.clock)
        self.app = app._replace(retention=retention, engines=EnginePool(parrot, max_models=1))
        self.app.projects.ensure("vision", by="")
        self.sdk = sdk_of(self.app)
        job = create(self.sdk)
        happens(self.app, job.id, VALIDATED, PLANNED, LAUNCHED, checkpoint(STEP))
        state = self.app.jobs.state(job.id)
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

    def send(self) -> None:
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
def retained(tmp_path) -> Retained:
    return Retained(tmp_path)


ACTS = ["share", "evaluate", "send", "batch"]


@pytest.mark.parametrize("act", ACTS)
def test_a_checkpoint_that_somebody_relies_on_stays(retained, act):
    getattr(retained, act)()
    for step in (STEP + 1, STEP + 2):
        retained.run.commits(retained.run.inner, step)
    assert retained.run.has_it()
    retained.send()


@pytest.mark.parametrize("act", ACTS)
def test_one_that_is_gone_is_a_404_and_nothing_is_made(retained, act):
    retained.run.commits(retained.run.inner, STEP + 1)
    assert not retained.run.has_it()
    with pytest.raises(openai.NotFoundError, match="was deleted by its run's retention"):
        getattr(retained, act)()
    assert retained.app.permissions.of(retained.model) == []
    assert retained.app.eval_runs.is_empty() and retained.app.batches.is_empty()


def test_a_permission_that_is_revoked_keeps_nothing(retained):
    permission, again = retained.share(), retained.share()
    assert permission == again
    permissions = retained.sdk.fine_tuning.checkpoints.permissions
    permissions.delete(permission, fine_tuned_model_checkpoint=retained.model)
    retained.run.commits(retained.run.inner, STEP + 1)
    assert not retained.run.has_it()


def test_an_eval_run_keeps_what_it_asked_until_it_is_deleted(retained):
    run = retained.evaluate()
    worker = worker_of(retained.app)
    work(worker)
    retained.run.commits(retained.run.inner, STEP + 1)
    assert retained.run.has_it() and retained.sdk.evals.runs.retrieve(run.id, eval_id=run.eval_id).status == "completed"
    retained.sdk.evals.runs.delete(run.id, eval_id=run.eval_id)
    work(worker)
    retained.run.commits(retained.run.inner, STEP + 2)
    assert not retained.run.has_it()
