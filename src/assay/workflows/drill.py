"""A resume drill: a short pilot run must end with the same bits whatever fault is injected.

Recovery that is never exercised does not work when it is needed, so a large run can require a drill. An
exercise whose fault did not occur fails, because it tested nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from assay.base.clock import SystemClock
from assay.base.config import LoadedConfig
from assay.base.errors import AssayError, TrainingError
from assay.elastic.detached import start_detached
from assay.elastic.faults import JOIN_S, FaultPlan, join_command, never_came
from assay.elastic.lane_times import Share
from assay.elastic.nodes.group import NodeGroup
from assay.elastic.supervisor import Nodes, RestartPolicy, Supervisor
from assay.elastic.task import Parallel
from assay.records.drill import DrillReport, Exercise
from assay.records.run import DRILL_PREFIX, Run
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.ledger.writer import FINISH_S, LedgerWriter
from assay.store.objects import open_store
from assay.training.audit import audit_run
from assay.workflows.bookkeeping import Bookkeeper, writer_of
from assay.workflows.run import create_run

MAX_LIVES = 12
HANG_S = 10.0
NODES_HANG_S = 2 * JOIN_S
"""Ranks wait while a node that they need joins."""


class Scenario(NamedTuple):
    """A way to disturb the pilot."""

    name: str
    faults: tuple[dict[str, object], ...] = ()
    world_sizes: tuple[int, ...] = ()
    """World sizes of the attempts in turn; empty: as requested."""
    parallel: tuple[Parallel, ...] = ("ddp",)
    share: Share = "equal"
    on_nodes: bool = False
    """Whether each worker is on a node of its own: another supervisor on this machine."""

    def plan(self) -> FaultPlan:
        return FaultPlan.model_validate({"faults": self.faults})


def scenarios(*, num_steps: int, commit_every: int, workers: int) -> list[Scenario]:
    """Return the undisturbed pilot, then each scenario."""
    middle, last = num_steps // 2, workers - 1
    committed = commit_every * max(1, middle // commit_every)
    kill = {"type": "kill", "rank": last, "step": middle}
    at_start = {**kill, "step": 1, "phase": "startup", "attempt": 1}
    of_nodes = _of_nodes(middle) if workers > 1 else []
    return [
        Scenario("undisturbed"),
        Scenario("a rank killed while it reads", ({**kill, "phase": "data"},)),
        Scenario("a rank killed in a step", ({**kill, "phase": "compute"},)),
        Scenario("a rank killed in a commit", ({**kill, "step": committed, "phase": "checkpoint"},)),
        Scenario("killed at the start, and again", (at_start, {**at_start, "attempt": 2})),
        Scenario("preempted (SIGTERM)", ({"type": "terminate", "step": middle, "phase": "compute"},)),
        Scenario("a rank that hangs", ({"type": "hang", "rank": last, "step": middle, "phase": "data"},)),
        Scenario(
            "a commit's file with one bit flipped",
            ({"type": "damage", "how": "flipped", "step": committed, "rank": 0, "phase": "data"},),
        ),
        Scenario("the store fails a write", ({"type": "store", "how": "error", "step": middle, "num_writes": 1},)),
        Scenario(
            "resized: half the workers, then back",
            (kill, {**kill, "attempt": 2, "rank": 0, "step": middle + commit_every}),
            world_sizes=(workers, max(1, workers // 2), workers),
        ),
        Scenario("resumed on sharded weights", (kill,), parallel=("ddp", "fsdp2")),
        *of_nodes,
    ]


def _of_nodes(middle: int) -> list[Scenario]:
    """Return the scenarios of joining and leaving nodes; a kill makes the next attempt include new nodes and
    share lanes again."""
    leave = {"type": "leave", "node": 1, "step": middle}
    join = {"type": "join", "node": 0, "attempt": 2, "step": middle + 2}
    kill = {"type": "kill", "rank": 0, "phase": "data"}
    slow = {"type": "slow_node", "node": 1, "step": 1, "factor": 3.0}
    return [
        Scenario(
            "a node leaves, another comes",
            (leave, join, {**kill, "attempt": 2, "step": middle + 3}),
            on_nodes=True,
        ),
        Scenario("a slow node gets fewer lanes", (slow, {**kill, "step": middle}), share="speed", on_nodes=True),
    ]


def drill(
    home: Home,
    recipe: LoadedConfig,
    *,
    num_steps: int,
    workers: int,
    on_exercise: Callable[[Exercise], None] = lambda exercise: None,
) -> DrillReport:
    """Run every scenario on the first `num_steps` steps of the recipe."""
    commit_every = max(1, num_steps // 6)
    pilot = _pilot(recipe, num_steps=num_steps, commit_every=commit_every)
    expected_digest, exercises = "", []
    for scenario in scenarios(num_steps=num_steps, commit_every=commit_every, workers=workers):
        run = create_run(home, pilot, world_size=workers, is_drill=True)
        with writer_of(home, run) as writer:
            exercise = _exercise(home, run, scenario, writer, workers=workers, expected_digest=expected_digest)
            writer.wait(FINISH_S)
        expected_digest = expected_digest or exercise.weights_digest
        exercises.append(exercise)
        on_exercise(exercise)
    return DrillReport.of(run.recipe, tuple(exercises), recipe_sha256=run.recipe_sha256, workers=workers)


def _pilot(recipe: LoadedConfig, *, num_steps: int, commit_every: int) -> LoadedConfig:
    trainer = {
        **recipe.values.get("trainer", {}),
        "max_steps": num_steps,
        "commit_every": commit_every,
        "evaluate_every": None,
    }
    name = f"{DRILL_PREFIX}{recipe.values.get('name', 'recipe')}"
    return LoadedConfig({**recipe.values, "name": name, "trainer": trainer}, recipe.origins)


def _exercise(
    home: Home, run: Run, scenario: Scenario, writer: LedgerWriter, *, workers: int, expected_digest: str
) -> Exercise:
    clock, log = SystemClock(), CommitLog(open_store(run.store_url))
    start_s = clock.monotonic_s()
    problem, num_attempts = "", 0
    try:
        with _nodes_of(home, run, scenario, workers) as nodes:
            num_attempts = _run_until_done(run, log, scenario, writer, workers, nodes)
        verdict = audit_run(run, log, check_shards=False).verdict
        unfired = never_came(scenario.plan(), Path(run.run_dir), last_attempt=num_attempts)
        if verdict != "pass":
            problem = f"the audit says {verdict}"
        elif unfired:
            problem = " ".join(unfired)
    except AssayError as error:
        problem = str(error)
    finished = log.finished()
    digest = finished.weights_digest if finished else ""
    if not problem and expected_digest and digest != expected_digest:
        problem = "the weights differ from those of the undisturbed run"
    return Exercise(
        name=scenario.name,
        run_id=run.run_id,
        weights_digest=digest,
        num_attempts=num_attempts,
        seconds=clock.monotonic_s() - start_s,
        problem=problem,
    )


@contextmanager
def _nodes_of(home: Home, run: Run, scenario: Scenario, workers: int) -> Iterator[Nodes | None]:
    """Yield a group of nodes on this machine, one for each worker; None if the scenario needs none."""
    if not scenario.on_nodes:
        yield None
        return
    clock = SystemClock()
    log = CommitLog(open_store(run.store_url))
    group = NodeGroup(run, log, host="127.0.0.1", ranks_per_node=1, clock=clock, quiet_s=0.0)
    with closing(group):
        output = Path(run.run_dir) / "nodes.log"
        for _ in range(1, workers):
            start_detached(join_command(run.run_id), home.environment(), log=output)
        deadline_s = clock.monotonic_s() + JOIN_S
        while group.room(workers) < workers:
            if clock.monotonic_s() > deadline_s:
                raise TrainingError(f"the nodes did not join within {JOIN_S:.0f} s; see {output}.")
            clock.sleep_s(0.05)
        try:
            yield group
        finally:
            group.end(0)


def _run_until_done(
    run: Run, log: CommitLog, scenario: Scenario, writer: LedgerWriter, workers: int, nodes: Nodes | None
) -> int:
    sizes: Sequence[int] = scenario.world_sizes or (workers,)
    attempt = 0
    for _ in range(MAX_LIVES):
        policy = RestartPolicy(
            world_sizes=tuple(sizes[attempt:]),
            faults=scenario.plan(),
            parallel=scenario.parallel,
            share=scenario.share,
            hang_s=NODES_HANG_S if scenario.on_nodes else HANG_S,
        )
        bookkeeper = Bookkeeper(run, writer, SystemClock())
        supervisor = Supervisor(
            run,
            CommitLog(log.store),
            policy=policy,
            observers=[bookkeeper],
            clock=SystemClock(),
            nodes=nodes,
        )
        last = supervisor.run(sizes[-1])
        attempt = last.attempt if last else attempt
        if log.finished() is not None:
            break
    return attempt
