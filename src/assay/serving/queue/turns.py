"""Whose turn it is: fair between projects, then by age.

A place goes to the project with the fewest runs at work; of several, to that whose last launch lies longest
back; and there, to the oldest job. So with one place the projects take turns, however many jobs one of them
has, and with many places each has as many runs as the others, as long as it has jobs.

    at work: A0      waiting: A1 A2 A3 B1 B2      -->  B1 A1 B2 A2 A3

When a project had its turn is remembered under `turn/PROJECT`: of what that loses, nothing depends but whose
turn comes first.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress

from assay.serving.job import JobState
from assay.store.objects import ObjectStore


def in_turn(
    waiting: Iterable[JobState], at_work: Iterable[JobState], last_turns: Mapping[str, float]
) -> list[JobState]:
    """The jobs in the order in which they get a place; `last_turns`: project -> when it last had one."""
    queues: dict[str, deque[JobState]] = {}
    for state in sorted(waiting, key=_job_id):
        queues.setdefault(state.created.project, deque()).append(state)
    runs, last = Counter(state.created.project for state in at_work), dict(last_turns)
    newest_s = max(last.values(), default=0.0)
    order: list[JobState] = []
    while queues:
        project = min(
            queues, key=lambda each: (runs[each], last.get(each, -math.inf), _job_id(queues[each][0]))
        )
        order.append(queues[project].popleft())
        runs[project] += 1
        newest_s += 1.0
        last[project] = newest_s
        if not queues[project]:
            del queues[project]
    return order


def note_turn(store: ObjectStore, project: str, at_s: float) -> None:
    """Remember that a project gets a place now."""
    store.put(_key(project), str(at_s).encode())


def last_turns(store: ObjectStore, projects: Iterable[str]) -> dict[str, float]:
    """When each of them last had a place; without those that never had one."""
    found = {}
    for project in sorted(set(projects)):
        if store.exists(key := _key(project)):
            with suppress(ValueError):  # cut short with its writer
                found[project] = float(store.get(key))
    return found


def _key(project: str) -> str:
    return f"turn/{project}"


def _job_id(state: JobState) -> str:
    return state.created.job_id
