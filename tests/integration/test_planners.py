"""Real training whose exchange is planned for any loads and any nodes, changed at every restart: one digest."""

import random
from itertools import pairwise
from pathlib import Path

import pytest

from assay.base.clock import SystemClock
from assay.elastic.processes import RankProcesses
from assay.elastic.supervisor import RestartPolicy, Supervisor, ThisMachine
from assay.elastic.task import Orders
from assay.records.run import Run
from assay.store.attempts import saved_attempts
from integration.test_soak import (
    KILLED_BY_STEP,
    OFTEN,
    assert_as_if_nothing_had_happened,
    changing_sizes,
    log_of,
    random_parallel,
    random_plan,
    seeds,
)

NUM_LANES = 8


def parts(rng: random.Random, whole: int, number: int) -> tuple[int, ...]:
    """So many numbers, each at least 1, that add up to it."""
    edges = [0, *sorted(rng.sample(range(1, whole), number - 1)), whole]
    return tuple(b - a for a, b in pairwise(edges))


class DealtAnew(ThisMachine):
    """Ranks of this machine, with lanes and nodes as a seed has them."""

    def __init__(self, run: Run, rng: random.Random) -> None:
        super().__init__(run)
        self._rng = rng
        self.dealt: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def start(self, orders: Orders) -> RankProcesses:
        size = orders.attempt.world_size
        loads = parts(self._rng, NUM_LANES, size)
        nodes = parts(self._rng, size, self._rng.randint(1, min(3, size)))
        self.dealt.append((loads, nodes))
        attempt = orders.attempt.model_copy(update={"loads": loads})
        return super().start(orders.model_copy(update={"attempt": attempt, "nodes": nodes}))


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(short=1, soak=20))
def test_any_loads_nodes_and_sizes_changed_at_each_restart_end_with_the_undisturbed_weights(
    seed: int, new_tiny_run, undisturbed: str
) -> None:
    rng = random.Random(seed)
    sizes, run = changing_sizes(rng, num_attempts=3, among=range(2, NUM_LANES + 1)), new_tiny_run(**OFTEN)
    policy = RestartPolicy(
        world_sizes=sizes,
        parallel=("ddp", *random_parallel(rng, 2)),
        faults=random_plan(seed, num_steps=KILLED_BY_STEP, world_sizes=sizes),
    )
    machine = DealtAnew(run, rng)
    Supervisor(run, log_of(run), policy=policy, observers=[], clock=SystemClock(), nodes=machine).run(1)
    attempts = saved_attempts(Path(run.run_dir))
    assert [attempt.world_size for attempt in attempts] == list(sizes[: len(attempts)]), machine.dealt
    assert attempts[0].outcome == "killed" and len(machine.dealt) == len(attempts)
    assert_as_if_nothing_had_happened(run, undisturbed)
