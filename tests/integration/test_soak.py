"""Random kills, at random moments, on a random number of ranks: an hour of them with `make soak`.

The seed is the reproduction of what is killed and on how many ranks; the moment also depends on the machine.
"""

import os
import random
import signal

import pytest

from assay.base.clock import SystemClock
from assay.launch.audit import audit_run
from assay.launch.supervisor import RestartPolicy, Supervisor
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store

NUM_KILLS = 4


class RandomKiller:
    """Kills a random rank of each of the first attempts some tenths of a second after it began."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._kills_left = NUM_KILLS

    def attempt_began(self, attempt, pids) -> None:
        self._pids = pids
        self._at_s = SystemClock().monotonic_s() + self._rng.uniform(0.0, 3.0)

    def tick(self, attempt) -> None:
        if self._kills_left and SystemClock().monotonic_s() >= self._at_s:
            self._kills_left -= 1
            self._at_s = float("inf")
            try:
                os.kill(self._rng.choice(self._pids), signal.SIGKILL)
            except ProcessLookupError:
                return

    def attempt_ended(self, attempt) -> None:
        pass


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(50))
def test_random_kills_and_resizes_end_with_the_undisturbed_weights(seed: int, new_tiny_run, run_it) -> None:
    _, undisturbed, _ = run_it(trainer__epochs=3)
    rng = random.Random(seed)
    run = new_tiny_run(trainer__epochs=3)
    log = CommitLog(open_store(run.store_url))
    supervisor = Supervisor(
        run,
        CommitLog(open_store(run.store_url)),
        policy=RestartPolicy(
            max_restarts=20, world_sizes=tuple(rng.choice([1, 2, 4]) for _ in range(NUM_KILLS + 1))
        ),
        watchers=[RandomKiller(rng)],
        clock=SystemClock(),
    )
    supervisor.run(1)
    assert log.finished().weights_digest == undisturbed.finished().weights_digest
    assert audit_run(run, log).verdict == "pass"
