"""Builds the objects of one rank and trains: the only module that joins a method, a loader and a store."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path

from assay.base.clock import Clock, SystemClock
from assay.base.errors import DamagedDataError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import Part, key_column, split_view
from assay.data.loader.lane_shares import LaneShares
from assay.data.loader.loader import Loader
from assay.distributed.allocator import retain_freed_memory
from assay.distributed.link_probe import probe_links
from assay.distributed.rank_device import rank_device
from assay.distributed.ranks import Ranks
from assay.elastic import import_time
from assay.elastic.faults import RankFaults
from assay.elastic.recorder import RankRecorder
from assay.elastic.task import RankTask, StopFlag
from assay.evals.predictions import (
    graded_rows,
    is_one_score,
    predict,
    validation_error,
    validation_metric,
    write_predictions,
)
from assay.records.commit import Commit, RunFinished
from assay.records.cursor import Cursor
from assay.records.rank_device import RankDevice
from assay.statistics.predictions import PREDICTIONS_FILE, evaluation_folder, with_clusters
from assay.statistics.warnings import ONE_SCORE
from assay.store.commit_log import CommitLog
from assay.store.heartbeat import Heartbeats
from assay.store.home import Home
from assay.store.logs.retained_checkpoints import RetainedCheckpoints
from assay.store.metrics.segment import SegmentWriter, segment_path
from assay.store.objects import open_store
from assay.training.checkpoint.parts import StatefulPart
from assay.training.checkpoint.saver import Saver
from assay.training.methods.registry import method_of
from assay.training.outer.cluster import ClusterTrainer, wait_to_begin
from assay.training.outer.meeting import Meeting, announcement
from assay.training.recipe import EvaluationConfig, Recipe, recipe_of
from assay.training.rollouts.source import RolloutMethod
from assay.training.trainer.context import RankContext, RankParts
from assay.training.trainer.method_config import samples
from assay.training.trainer.trainer import Outcome, Trainer, TrainingPosition


def train_rank(task: RankTask, stop: StopFlag, began: Callable[[RankDevice], None] = lambda device: None) -> Outcome:
    """Train this rank's lanes to the last step, or until `stop` is set; evaluate after the last step.

    `began` is called with the rank's device once the process group is up.
    """
    recipe, faults = recipe_of(task.run), _faults(task, stop)
    recorder = _recorder(task, faults)
    ranks = _ranks(task, recipe)
    began(rank_device(ranks.device))
    recorder.part("rendezvous")
    context = RankContext(
        ranks,
        method_of(recipe.method),
        _loader(recipe, "train"),
        recipe.trainer,
        recipe.seed,
        CommitLog(faults.store, attempt=task.orders.attempt.attempt),
        faults.clock,
        enter_phase=recorder.phase,
        is_stopping=lambda: stop.is_set,
    )
    recorder.part("dataset")
    train = _train_lanes if task.run.cluster_of is None else _train_cluster
    outcome = train(task, recipe, context, recorder)
    _leave(task, recorder, ranks)
    return outcome


def _train_lanes(task: RankTask, recipe: Recipe, context: RankContext, recorder: RankRecorder) -> Outcome:
    """Train a run of its own: all lanes, to the last step."""
    ranks = context.ranks
    parts = RankParts(context, _shares(task, ranks, recipe), times_lanes=task.orders.times_lanes)
    saver = _saver(task, recipe, context, parts.state)
    parts.stepper.before_update = saver.before_update
    recorder.part("model")
    position = _restored(saver, task.orders.commit, context.loader)
    evaluate = partial(_evaluator(task, recipe, context, recorder), parts)
    trainer = Trainer(
        context,
        parts.stepper,
        saver,
        recorder,
        lanes=parts.lanes,
        failure_s=task.orders.failure_s,
        evaluate=evaluate,
        lookahead=parts.source.lookahead,
    )
    _started_up(task, context, recorder)
    if position.step == 0 and recipe.trainer.evaluate_every is not None and samples(recipe.method):
        # The baseline that later scores of sampled completions are compared with.
        recorder.phase("evaluation")
        evaluate(0)
    outcome = trainer.train(position)
    if outcome == "finished":
        recorder.phase("evaluation")
        evaluate(context.num_steps)
        _finish(context.log, ranks)
    saver.close()
    parts.lane_sum.close()
    return outcome


def _train_cluster(task: RankTask, recipe: Recipe, context: RankContext, recorder: RankRecorder) -> Outcome:
    """Train this cluster's share of the lanes, and take outer steps with the other clusters."""
    of, config = task.run.cluster_of, recipe.outer
    assert of is not None and config is not None, "a run of a cluster has a recipe with outer steps"
    meeting = Meeting(open_store(of.meeting_url), of.cluster, config)
    if context.ranks.rank == 0:
        meeting.announce(announcement(task.run, workers=context.ranks.world_size))
    state = wait_to_begin(context, meeting, recorder, recipe_sha256=task.run.recipe_sha256)
    if state is None:
        return "stopped"
    evaluate = _evaluator(task, recipe, context, recorder)
    trainer = ClusterTrainer(
        context,
        config,
        meeting,
        state,
        recorder,
        make_saver=partial(_saver, task, recipe, context),
        evaluate=evaluate,
        failure_s=task.orders.failure_s,
    )
    recorder.part("model")
    trainer.restore(task.orders.commit)
    _started_up(task, context, recorder)
    outcome = trainer.train()
    if outcome == "finished":
        recorder.phase("evaluation")
        evaluate(trainer.parts, trainer.step)
        _finish(context.log, context.ranks)
    trainer.close()
    return outcome


def _started_up(task: RankTask, context: RankContext, recorder: RankRecorder) -> None:
    recorder.part("restore")
    if context.ranks.rank == 0:
        recorder.event(_startup(task, context.clock, recorder.parts))


def _leave(task: RankTask, recorder: RankRecorder, ranks: Ranks) -> None:
    recorder.phase("idle")
    if task.orders.times_lanes and ranks.outer is not None and ranks.world_size > 1:
        for span in probe_links(ranks.outer, ranks.device):
            recorder.span(*span)
    recorder.close()
    ranks.leave()


def _startup(task: RankTask, clock: Clock, parts: Mapping[str, float]) -> str:
    """Return a sentence about where the startup time of an attempt went."""
    whole = clock.now_s() - task.orders.attempt.started_s
    spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in parts.items())
    return f"ready after {whole:.2f} s: imports and a process {whole - sum(parts.values()):.2f} s, {spent}"


def _ranks(task: RankTask, recipe: Recipe) -> Ranks:
    retain_freed_memory()
    return Ranks.join(
        rank=task.rank,
        world_size=task.orders.attempt.world_size,
        rendezvous=task.rendezvous,
        num_threads=recipe.trainer.threads_per_rank,
        shards_weights=task.orders.parallel == "fsdp2",
    )


def _faults(task: RankTask, stop: StopFlag) -> RankFaults:
    return RankFaults(
        task.orders.faults,
        attempt=task.orders.attempt.attempt,
        rank=task.rank,
        supervisor_pid=task.supervisor_pid,
        run_dir=Path(task.run.run_dir),
        ledger_path=Home.from_environment().ledger_file(),
        store=open_store(task.run.store_url),
        clock=SystemClock(),
        is_stopping=lambda: stop.is_set,
        nodes=task.orders.nodes,
    )


def _shares(task: RankTask, ranks: Ranks, recipe: Recipe) -> LaneShares:
    """Return the lanes of all ranks: dealt in rounds if weights are sharded, else in blocks as the attempt says."""
    return LaneShares(
        recipe.loader.lanes,
        ranks.world_size,
        interleaved=ranks.inner is not None,
        nodes=task.orders.nodes,
        explicit_loads=(task.orders.attempt.loads or None) if ranks.inner is None else None,
    )


def _restored(saver: Saver, commit: Commit | None, loader: Loader) -> TrainingPosition:
    """Restore model and optimizer from the commit; return the position to resume from."""
    if commit is None:
        return TrainingPosition(0, Cursor())
    if commit.cursor != loader.cursor_at(commit.step):
        raise DamagedDataError(
            f"{commit.folder}: its log entry has step {commit.step} with {commit.cursor}, which is the cursor of "
            f"another step. Resuming would skip or repeat rows. Restore the entry from a backup."
        )
    saver.restore(commit)
    return TrainingPosition.after(commit, loader)


def _evaluator(
    task: RankTask, recipe: Recipe, context: RankContext, recorder: RankRecorder
) -> Callable[[RankParts, int], float | None]:
    """Return a function that scores the validation rows with the current weights, cached for the last step."""
    # Opened at the first evaluation, so that the first step does not wait for it.
    key = key_column(recipe.data.split)
    validation = cache(partial(_loader, recipe, "validation", () if key is None else (key,)))
    method, predictions = context.method, recipe.method.predictions

    def evaluate(parts: RankParts, step: int) -> float | None:
        """Write the predictions of `step`; return the validation metric on rank 0, None on other ranks."""
        model = parts.lane_sum.whole_model() if isinstance(method, RolloutMethod) else parts.model
        table = predict(model, method, validation(), context.ranks)
        if table is None:
            return None
        table = with_clusters(graded_rows(table, predictions), key, keep_key=key in recipe.method.columns)
        folder = evaluation_folder(Path(task.run.run_dir), step=step, split="validation")
        write_predictions(table, folder / PREDICTIONS_FILE)
        if (alike := is_one_score(table, predictions)) is not None:
            recorder.log(step, {ONE_SCORE: float(alike)})
        metric = validation_metric(table, predictions)
        if metric is not None:
            name, error = f"validation_{predictions.metric.name}", validation_error(table, predictions)
            recorder.log(step, {name: metric, **({} if error is None else {f"{name}_error": error})})
        return metric

    return lru_cache(maxsize=1)(evaluate)


def _recorder(task: RankTask, faults: RankFaults) -> RankRecorder:
    """Return a recorder in phase `startup` that has logged the import time."""
    run, attempt, clock = task.run, task.orders.attempt, faults.clock
    path = segment_path(Path(run.run_dir), attempt.attempt, task.rank)
    segment = SegmentWriter(path, run_id=run.run_id, attempt=attempt.attempt, rank=task.rank, clock=clock)
    heartbeats = Heartbeats(Path(task.heartbeats), attempt.world_size)
    recorder = RankRecorder(
        segment, heartbeats, task.rank, clock, start_step=attempt.start_step, at_moment=faults.at_moment
    )
    recorder.phase("startup")
    if import_time.began_s is not None and import_time.ended_s is not None:
        segment.span("imports", import_time.began_s, import_time.ended_s)
    return recorder


def _loader(recipe: Recipe, part: Part, extra_columns: tuple[str, ...] = ()) -> Loader:
    """Return a loader of the method's columns and of `extra_columns`."""
    dataset = Dataset.open(Path(recipe.data.dataset))
    columns = tuple(dict.fromkeys([*recipe.method.columns, *extra_columns]))
    config = recipe.loader if part == "train" else recipe.loader.for_evaluation()
    return Loader(split_view(dataset, recipe.data.split, part), config, columns)


def _saver(task: RankTask, recipe: Recipe, context: RankContext, parts: Mapping[str, StatefulPart]) -> Saver:
    log = context.log
    return Saver(
        parts,
        context.ranks,
        log,
        recipe.retention,
        context.clock,
        partial(_awaited, recipe.evaluation, log),
        retire=RetainedCheckpoints(log.store, context.clock).retire,
        higher_is_better=recipe.method.predictions.metric.higher_is_better,
        verify_every=task.orders.verify_commits,
    )


def _awaited(evaluation: EvaluationConfig | None, log: CommitLog, commits: Sequence[Commit]) -> Sequence[str]:
    if evaluation is None:
        return ()
    # Imported here: without an evaluation suite, ranks do not need this module.
    from assay.evals.queue import awaited_folders

    return awaited_folders(commits, evaluation, log.store)


def _finish(log: CommitLog, ranks: Ranks) -> None:
    if ranks.rank == 0:
        last = log.commits()[-1]
        log.append(RunFinished(attempt=log.attempt, step=last.step, weights_digest=last.weights_digest))
