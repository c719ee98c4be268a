"""Clusters of one rank each in this process, with the real trainer, saver and meeting place, on simulated time.

Programs take turns by a seed (see `interleaving`), so a death, a nap or a race is the same at every run of a test.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.base.code_version import code_version
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.data.loader.loader import Loader
from assay.distributed.ranks import Ranks
from assay.records.commit import RunFinished
from assay.records.phase import Phase
from assay.records.run import Attempt, ClusterOf, Run
from assay.store.attempts import save_attempt
from assay.store.commit_log import CommitLog
from assay.store.objects import ObjectStore, open_store
from assay.training.checkpoint.retention import RetentionConfig
from assay.training.checkpoint.saver import Saver
from assay.training.methods.registry import method_of
from assay.training.outer.cluster import ClusterTrainer, wait_to_begin
from assay.training.outer.meeting import Meeting, announcement
from assay.training.recipe import Recipe, recipe_of, recipe_sha256
from assay.training.trainer.context import RankContext
from interleaving import OffClock, Stage
from machine import MACHINE


class Died(BaseException):
    """The cluster's processes are gone."""


@dataclass
class Life:
    """What happens to a cluster: it dies in one phase of `dies_in`, and stays away for up to `away_s`."""

    rng: random.Random
    dies_in: float = 0.0
    away_s: float = 0.0
    deaths_left: int = 5
    step_s: float = 1.0
    asleep_from: int | None = None
    """Outer step before which it goes away once, for `asleep_s`."""
    asleep_s: float = 0.0
    stops: int = 0
    """SIGTERMs that are to come while it waits for the others."""


@dataclass
class SimulatedCluster:
    """One cluster's run, with its own store."""

    name: str
    run: Run
    ranks: Ranks
    life: Life
    trainer_class: type[ClusterTrainer] = ClusterTrainer
    clock: OffClock | None = None
    outcomes: list[str] = field(default_factory=list)
    late_steps: dict[int, float] = field(default_factory=dict)
    """Outer step to its inner steps that nobody learned from."""

    @cached_property
    def recipe(self) -> Recipe:
        return recipe_of(self.run)

    def body(self, clock: OffClock, meeting_store: ObjectStore) -> None:
        """Train to the end, over as many attempts as it takes."""
        self.clock = clock
        while "finished" not in self.outcomes:
            try:
                self.outcomes.append(self._attempt(clock, meeting_store))
            except Died:
                self.outcomes.append("died")
                clock.sleep_s(self.life.rng.uniform(0, self.life.away_s))

    def _attempt(self, clock: OffClock, meeting_store: ObjectStore) -> str:
        recipe, config = self.recipe, self.recipe.outer
        assert config is not None
        log = CommitLog(open_store(self.run.store_url))
        number = log.begin_attempt(world_size=1, now_s=clock.now_s())
        folder, attempt = (
            Path(self.run.run_dir),
            {"attempt": number, "world_size": 1, "start_step": 0, "started_s": 0.0},
        )
        save_attempt(folder, Attempt(run_id=self.run.run_id, **attempt, **MACHINE))
        recorder = Phases(self, clock)
        context = RankContext(
            self.ranks, method_of(recipe.method), loader_of(recipe), recipe.trainer, recipe.seed, log, clock,
            is_stopping=lambda: recorder.is_stopping,
        )  # fmt: skip
        meeting = Meeting(meeting_store, self.name, config)
        meeting.announce(announcement(self.run, workers=1))
        state = wait_to_begin(context, meeting, recorder, recipe_sha256=self.run.recipe_sha256)
        assert state is not None
        trainer = self.trainer_class(
            context, config, meeting, state, recorder,
            make_saver=lambda parts: Saver(parts, self.ranks, log, RetentionConfig(keep_last=2), clock),
            evaluate=lambda parts, step: None,
            failure_s=1e9,
        )  # fmt: skip
        recorder.trainer = trainer
        try:
            trainer.restore(log.commits()[-1] if log.commits() else None)
            outcome = trainer.train()
        finally:
            with suppress(Exception):
                trainer.close()
        if outcome == "finished":
            last = log.commits()[-1]
            log.append(RunFinished(attempt=log.attempt, step=last.step, weights_digest=last.weights_digest))
        return outcome


class Phases:
    """A rank's recorder: each phase may be the last of its attempt, and each step takes time."""

    def __init__(self, cluster: SimulatedCluster, clock: OffClock) -> None:
        self.trainer: ClusterTrainer | None = None
        self.is_stopping = False
        self._life, self._clock, self._late_steps = cluster.life, clock, cluster.late_steps

    def phase(self, name: Phase) -> None:
        life = self._life
        if name == "data" and self.trainer is not None and self.trainer._state.outer_step > 0:
            # The first inner steps are measured: a deadline that is shorter is an error.
            self._clock.sleep_s(life.step_s)
        if name == "meeting" and life.stops:
            life.stops -= 1
            self.is_stopping = True
        if self._is_bedtime():
            life.asleep_from = None
            self._clock.sleep_s(life.asleep_s)
        if life.deaths_left and life.rng.random() < life.dies_in:
            life.deaths_left -= 1
            raise Died

    def _is_bedtime(self) -> bool:
        trainer, at = self.trainer, self._life.asleep_from
        return trainer is not None and at is not None and trainer._state.outer_step == at - 1

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if "late_steps" in values:
            self._late_steps[int(values["outer_step"])] = values["late_steps"]

    def sync(self) -> None: ...


def loader_of(recipe: Recipe) -> Loader:
    view = split_view(Dataset.open(Path(recipe.data.dataset)), recipe.data.split, "train")
    return Loader(view, recipe.loader, recipe.method.columns)


def cluster_run(tree: dict[str, Any], folder: Path, name: str) -> Run:
    """Return the record of a cluster's run; it meets the others in `folder`/meet."""
    resolved = Recipe.model_validate(tree).model_dump(mode="json")
    fingerprint = Dataset.open(Path(resolved["data"]["dataset"])).fingerprint
    return Run(
        run_id=f"run-{name}", created_s=0.0, recipe=resolved, recipe_sha256=recipe_sha256(resolved, fingerprint),
        dataset_fingerprint=fingerprint, code_version=code_version(), run_dir=str(folder / name),
        store_url=str(folder / name), num_steps=24,
        cluster_of=ClusterOf(cluster=name, meeting_url=str(folder / "meet")),
    )  # fmt: skip


def train_clusters(
    clusters: Sequence[SimulatedCluster],
    seed: int,
    *,
    nap_s: float = 0.0,
    wrapped: Callable[[ObjectStore], ObjectStore] = lambda store: store,
) -> Stage:
    """Train all clusters to their end; raise what one of them raised."""
    stage = Stage(seed, tick_s=0.2, num_steps=200_000, nap_s=nap_s)
    assert clusters[0].run.cluster_of is not None
    store = wrapped(open_store(clusters[0].run.cluster_of.meeting_url))
    for cluster in clusters:
        clock = OffClock(stage, ahead_s=stage.rng.uniform(-3600, 3600), jumps_s=3600.0)
        stage.add(cluster.body, store, clock)
    stage.play()
    unfinished = [cluster.name for cluster in clusters if "finished" not in cluster.outcomes]
    assert not unfinished, f"seed {seed}: {unfinished} did not end"
    return stage
