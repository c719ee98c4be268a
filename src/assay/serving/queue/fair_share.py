"""Fair share between projects, then by age.

A slot goes to the project with the fewest running jobs; among several, to the one whose last launch is oldest; within a
project, to the oldest job. With one slot, projects alternate however many jobs they have; with many, each gets an equal
number of runs.

    running: A0      waiting: A1 A2 A3 B1 B2      -->  B1 A1 B2 A2 A3

The last launch time of a project is stored under `turn/PROJECT`; losing it only affects the next order.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress

from assay.serving.job import JobState
from assay.store.objects import ObjectStore


def launch_order(
    waiting: Iterable[JobState], at_work: Iterable[JobState], last_launch_times: Mapping[str, float]
) -> list[JobState]:
    """Return the jobs in launch order. `last_launch_times`: project -> its last launch."""
    queues: dict[str, deque[JobState]] = {}
    for state in sorted(waiting, key=_job_id):
        queues.setdefault(state.created.project, deque()).append(state)
    runs, last = Counter(state.created.project for state in at_work), dict(last_launch_times)
    newest_s = max(last.values(), default=0.0)
    order: list[JobState] = []
    while queues:
        project = min(
            queues,
            key=lambda candidate: (runs[candidate], last.get(candidate, -math.inf), _job_id(queues[candidate][0])),
        )
        order.append(queues[project].popleft())
        runs[project] += 1
        newest_s += 1.0
        last[project] = newest_s
        if not queues[project]:
            del queues[project]
    return order


def record_launch_time(store: ObjectStore, project: str, at_s: float) -> None:
    """Record that a project launches a job now."""
    store.put(_key(project), str(at_s).encode())


def last_launch_times(store: ObjectStore, projects: Iterable[str]) -> dict[str, float]:
    """Return the last launch time of each project that has one."""
    found = {}
    for project in sorted(set(projects)):
        if store.exists(key := _key(project)):
            with suppress(ValueError):  # truncated when its writer died
                found[project] = float(store.get(key))
    return found


def _key(project: str) -> str:
    return f"turn/{project}"


def _job_id(state: JobState) -> str:
    return state.created.job_id
