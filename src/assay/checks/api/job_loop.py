"""A client of OpenAI's fine-tuning API, in a process of its own: `python -m assay.checks.api.job_loop`.

Reads one JSON line per loop, {"url": ..., "base": ..., "key": ..., "timeout_s": ...}, and writes one line with the
outcome of each request and what the client saw. Two jobs are created: one trains and has to end with a model that
completes a prompt, the other is paused, resumed and cancelled.
"""

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import openai

from assay.checks.api.client import run_loops

NUM_ROWS = 48
LONG_EPOCHS = 100
"""Length of the job that is paused and cancelled."""
POLL_S = 0.2
ENDED = ("succeeded", "failed", "cancelled")
Outcome = tuple[str, str]
"""A verdict, and what the client saw."""
HELD: Outcome = ("held", "")


class JobLoop:
    """One loop."""

    def __init__(self, client: openai.OpenAI, base: str, timeout_s: float) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._client = client
        self._jobs = client.fine_tuning.jobs
        self._base = base
        self._timeout_s = timeout_s
        self._file: Any = None
        self._job: Any = None
        self._long_job: Any = None

    def run(self) -> None:
        """Judge each request by what the server has to show afterwards."""
        self._judge("files", self._upload)
        self._judge("jobs", self._create)
        self._judge("events", self._list_events)
        self._judge("completions", self._complete)
        self._judge("pause", lambda: self._act("pause", lambda status: status in ("pausing", "paused")))
        self._judge("resume", lambda: self._act("resume", lambda status: status not in ("pausing", "paused")))
        self._judge("cancel", lambda: self._act("cancel", lambda status: status == "cancelled"))

    def _judge(self, request: str, act: Callable[[], Outcome]) -> None:
        try:
            self.outcomes[request] = act()
        except openai.OpenAIError as error:
            self.outcomes[request] = ("error", f"{type(error).__name__}: {error}")
        except AttributeError:  # of what an earlier request should have created
            self.outcomes[request] = ("not tried", "an earlier request failed")

    def _upload(self) -> Outcome:
        name = f"assay-check-{uuid4().hex}.jsonl"
        text = "".join(json.dumps(_row(number)) + "\n" for number in range(NUM_ROWS))
        self._file = self._client.files.create(file=(name, text.encode()), purpose="fine-tune")
        if self._client.files.content(self._file.id).read() != text.encode():
            return "wrong", "the file has other bytes than were sent"
        return _outcome_of_count(sum(file.filename == name for file in self._client.files.list()), "files of this name")

    def _create(self) -> Outcome:
        self._job = self._new_job(num_epochs=1)
        num_jobs = sum(job.training_file == self._file.id for job in self._jobs.list())
        return _outcome_of_count(num_jobs, "jobs on this file")

    def _complete(self) -> Outcome:
        job = self._jobs.retrieve(self._job.id)
        if job.status != "succeeded" or job.fine_tuned_model is None:
            return "error", f"the job is {job.status}: {job.error}"
        self._client.chat.completions.create(
            model=job.fine_tuned_model, messages=_row(1)["messages"][:1], max_completion_tokens=4, temperature=0
        )
        return HELD

    def _list_events(self) -> Outcome:
        self._wait(self._job.id, lambda status: status in ENDED)
        first = [event.id for event in self._jobs.list_events(self._job.id, limit=100)]
        events = [*self._jobs.list_events(self._job.id, limit=2)]
        ids, times = [event.id for event in events], [event.created_at for event in events]
        if not first:
            return "lost", "the job has no events"
        if missing := len({*first} - {*ids}):
            return "lost", f"{missing} of {len(first)} events are gone"
        if repeated := sum(Counter(ids).values()) - len({*ids}):
            return "doubled", f"{repeated} events are listed twice"
        in_order = [event_id for event_id in ids if event_id in first] == first and times == sorted(times, reverse=True)
        return HELD if in_order else ("wrong", "pages are not in the order of the whole list, the newest event first")

    def _act(self, verb: str, is_done: Callable[[str], bool]) -> Outcome:
        self._long_job = self._long_job or self._new_job(num_epochs=LONG_EPOCHS)
        job_id = self._long_job.id
        try:
            getattr(self._jobs, verb)(job_id)
        except openai.BadRequestError as error:
            if self._jobs.retrieve(job_id).status in ("succeeded", "failed"):
                return "not tried", f"the job ended before: {error}"
            raise
        job = self._wait(job_id, lambda status: is_done(status) or status in ENDED)
        return HELD if is_done(job.status) else ("lost", f"the job is {job.status} after {verb}")

    def _new_job(self, num_epochs: int) -> Any:
        method: Any = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": num_epochs}}}
        return self._jobs.create(model=self._base, training_file=self._file.id, seed=7, method=method)

    def _wait(self, job_id: str, is_done: Callable[[str], bool]) -> Any:
        deadline_s = time.monotonic() + self._timeout_s / 2
        while True:
            job = self._jobs.retrieve(job_id)
            if is_done(job.status) or time.monotonic() > deadline_s:
                return job
            time.sleep(POLL_S)


def _outcome_of_count(number: int, what: str) -> Outcome:
    return HELD if number == 1 else ("doubled" if number else "lost", f"{number} {what}")


def _row(number: int) -> dict[str, Any]:
    messages = [
        {"role": "user", "content": f"{number} plus {number}"},
        {"role": "assistant", "content": str(2 * number)},
    ]
    return {"messages": messages}


def run(url: str, base: str, key: str, timeout_s: float, **_: Any) -> dict[str, Any]:
    """Run the loop; return the outcome of each request."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key) as client:
        loop = JobLoop(client, base, timeout_s)
        loop.run()
    return {"seen": loop.outcomes}


if __name__ == "__main__":
    run_loops(run)
