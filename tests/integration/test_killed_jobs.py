"""Server, worker and supervisors are killed by turns, while jobs are asked for, wait, run and end: each job is
made once and ends once, with the weights that it would have had.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import openai
import pytest

from assay.base.clock import SystemClock
from assay.records.fine_tuning_job import CancelRequested, JobFailed, JobSucceeded
from assay.serving.jobs import JobRepository
from assay.store.commit_log import CommitLog
from assay.store.launches import process_state, saved_launches
from assay.store.objects import open_store
from assay.store.run_results import saved_audit
from integration.test_serving import Here, messages, rows, undisturbed_digest
from slurm_cluster import wait_until

pytestmark = pytest.mark.timeout(14_400)
VICTIMS = ("supervisor", "server", "worker")
LONG_S = 3600.0
METHOD = {"type": "classification", "classification": {"hyperparameters": {"n_epochs": 2}}}


class Stricken(Here):
    """A server and a worker that are killed, and come back."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._server, self.sdk = self.serve()
        self._worker = self.work("--runs-at-once", "2")
        self.file = self.sdk.files.create(file=("rows.jsonl", rows(200)), purpose="fine-tune").id
        self.jobs = JobRepository(open_store(str(self.home.api)), SystemClock())
        self.ended: set[str] = set()
        """Jobs whose supervisor was killed: each once, for three in vain are the end."""

    def request_job(self, number: int) -> str:
        """A job; asked for until there is an answer."""
        key = {"Idempotency-Key": f"job {number}"}
        while True:
            try:
                return self.sdk.fine_tuning.jobs.create(
                    model="tiny", training_file=self.file, seed=7, method=METHOD, extra_headers=key
                ).id
            except openai.APIConnectionError:
                time.sleep(0.1)

    def kill_one(self, victim: str) -> None:
        """And have another in its place, unless it comes back by itself."""
        if victim == "server":
            self.kill(self._server)
            self._server, _ = self.serve(port=self.sdk.base_url.port)
        elif victim == "worker":
            self.kill(self._worker)
            self._worker = self.work("--runs-at-once", "2")
        else:
            wait_until(lambda: self.kill_a_supervisor() or not self.jobs.open_ids(), "a run at work", LONG_S)

    def kill_a_supervisor(self) -> bool:
        """Of a run that is at work, if there is one."""
        for path in self.home.folder.glob("ftjob-*/run.json"):
            job_id = path.parent.name
            for launch in saved_launches(self.home.run(job_id))[-1:]:
                if job_id not in self.ended and process_state(launch) == "running":
                    os.kill(int(launch.job), signal.SIGKILL)
                    self.ended.add(job_id)
                    return True
        return False


@pytest.fixture
def stricken(tmp_path: Path) -> Iterator[Stricken]:
    found = Stricken(tmp_path)
    try:
        yield found
    finally:
        found.end()


@pytest.mark.parametrize(
    ("num_kills", "num_jobs", "apart_s"),
    [
        pytest.param(5, 2, 1.0, marks=pytest.mark.slow),
        pytest.param(100, 100, 8.0, marks=[pytest.mark.slow, pytest.mark.soak]),
    ],
)
def test_each_job_ends_once_whatever_is_killed(
    stricken: Stricken, num_kills: int, num_jobs: int, apart_s: float
) -> None:
    rng = random.Random(num_kills)
    victims = [victim for victim, _ in zip(cycle(VICTIMS), range(num_kills), strict=False)]
    request = []
    with ThreadPoolExecutor(1) as asking:
        for number, victim in enumerate(victims):
            first, end = (-(-at * num_jobs // num_kills) for at in (number, number + 1))  # the first at once
            request += [asking.submit(stricken.request_job, n) for n in range(first, end)]
            time.sleep(rng.uniform(0.0, apart_s))
            if victim == "supervisor":
                request[-1].result()
            stricken.kill_one(victim)
        created = [item.result() for item in request]
    logs = stricken.jobs
    assert sorted(created) == logs.ids() and len(set(created)) == num_jobs
    wait_until(lambda: all(logs.state(job_id).has_ended for job_id in created), "the end of all", LONG_S)

    assert {path.parent.name for path in stricken.home.folder.glob("*/run.json")} == {*created}
    digest = undisturbed_digest(stricken, created[0])
    for job_id in created:
        state, run = logs.state(job_id), stricken.home.run(job_id)
        ends = [entry for entry in state.entries if isinstance(entry, JobSucceeded | JobFailed | CancelRequested)]
        assert [type(item) for item in ends] == [JobSucceeded], ends
        assert ends[0].weights_digest == digest
        assert CommitLog(open_store(run.store_url)).finished().weights_digest == digest
        assert saved_audit(run.run_dir).verdict == "pass"
        assert len(saved_launches(run)) <= 1 + (job_id in stricken.ended)
        # What it waits for may be the same again, after something else.
        output = Counter(message for message in messages(stricken.sdk, job_id) if not message.startswith("Waiting: "))
        # Said of each launch from step 0: two, where the first was killed before it had committed.
        assert 1 <= output.pop("Fine-tuning job started") <= len(saved_launches(run))
        assert max(output.values()) == output["The job has successfully completed"] == 1, output
        events = [*stricken.sdk.fine_tuning.jobs.list_events(job_id, limit=100)]
        steps = [event.data["step"] for event in events if event.type == "metrics"]
        assert steps == [*range(state.validated.num_steps, 0, -1)]
