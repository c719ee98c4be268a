"""What a node that leaves costs the others, and how soon one that joins works: `benchmarks/scale_nodes.py`.

A cluster whose lanes sleep (`cluster.py`); supervisors, ranks and commits are real. In each turn the supervisor
of one of four nodes gets a SIGTERM, then another node is lent to the run. A node that leaves costs the time
from the end of the last step with it to the beginning of the first without it: a commit, and ranks that find
each other anew. One that joins has been up since it said that it waits; it works from the first step that it
has lanes of.

The last line printed is one JSON object: the medians, and the longest.
"""

import json
import statistics
import time
from typing import NamedTuple

from assay.elastic.faults import WAITS_OUTSIDE
from assay.records.commit import Commit
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store
from cluster import Cluster, Setting, cluster
from harness import describe_machine, options_of
from network_links import require_namespaces

NODES = 4
SETTING = Setting(NODES, NODES, lane_s=0.05, rate="100mbit", steps=1000, commit_every=10)
STEPS_BETWEEN = 20


class Turn(NamedTuple):
    """Seconds."""

    leaving: float
    """Without a step, for those that stay."""
    joining: float
    """From the first commit after it was up."""
    joining_since_up: float


def turn(setting: Setting) -> Turn:
    """A run whose last node leaves, and to which another is lent."""
    with cluster(setting, spare=1) as created:
        created.start()
        created.until(lambda: created.last_commit() >= STEPS_BETWEEN)
        created.nodes[setting.nodes - 1].terminate()
        left = _started(created, 2)
        behind = created.last_commit() + STEPS_BETWEEN  # so many steps tell whether joining pays
        created.until(lambda: created.last_commit() >= behind)
        created.lend(setting.nodes)
        created.until(lambda: WAITS_OUTSIDE in created.words(setting.nodes))
        is_up_s = time.time()
        joined = _started(created, 3)
        assert [attempt.world_size for attempt in created.attempts()] == [
            setting.nodes,
            setting.nodes - 1,
            setting.nodes,
        ]
        commit_s = min(value for value in _commits_s(created) if value > is_up_s)
        last_step_s = created.last_step_s(created.attempts()[0])
    return Turn(left - last_step_s, joined - commit_s, joined - is_up_s)


def _started(launched: Cluster, attempt: int) -> float:
    """When its first step began, once it is over."""
    launched.until(lambda: len(launched.attempts()) >= attempt)
    started_at = launched.last_commit()
    launched.until(lambda: launched.last_commit() > started_at)
    return launched.first_step_s(launched.attempts()[attempt - 1])


def _commits_s(launched: Cluster) -> list[float]:
    log = CommitLog(open_store(str(launched.run_dir)))
    return [entry.committed_s for entry in log.entries() if isinstance(entry, Commit)]


def main() -> None:
    """Measure and print."""
    parser = options_of(__doc__)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    require_namespaces()
    describe_machine()
    turns = []
    for _ in range(options.turns):
        turns.append(found := turn(SETTING))
        print(
            f"without a step where a node leaves: {found.leaving:.2f} s; one that joins works "
            f"{found.joining:.2f} s behind a commit, {found.joining_since_up:.2f} s after it was up",
            flush=True,
        )
    figures = {
        f"{name}_{word}_s": round(of([getattr(item, name) for item in turns]), 3)
        for name in ("leaving", "joining")
        for word, of in (("median", statistics.median), ("longest", max))
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
