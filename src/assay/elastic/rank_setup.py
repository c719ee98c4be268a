"""Builds the objects of one rank and trains: the only module that joins a method, a loader and a store."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Literal

from assay.base.clock import Clock, SystemClock
from assay.base.errors import DamagedDataError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import Part, key_column, split_view
from assay.data.loader.lane_shares import LaneShares
from assay.data.loader.loader import Loader
from assay.distributed.allocator import retain_freed_memory
from assay.distributed.lane_sum import LaneSum
from assay.distributed.link_probe import probe_links
from assay.distributed.rank_device import rank_device
from assay.distributed.ranks import Ranks
from assay.distributed.sharded_lane_sum import ShardedLaneSum
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
from assay.store.objects import ObjectStore, open_store
from assay.training.checkpoint.parts import StatefulPart, training_parts
from assay.training.checkpoint.reward_cache import RewardCache
from assay.training.checkpoint.saver import Saver
from assay.training.methods.registry import method_of
from assay.training.recipe import EvaluationConfig, Recipe, recipe_of
from assay.training.trainer.commit_schedule import CommitSchedule
from assay.training.trainer.lane_forward import LaneForward
from assay.training.trainer.lane_recomputer import LaneRecomputer, ShardedLaneRecomputer
from assay.training.trainer.method import PredictingMethod, RolloutMethod
from assay.training.trainer.method_config import RowScores
from assay.training.trainer.optimizer import build_optimizer
from assay.training.trainer.spot_check import SpotCheck
from assay.training.trainer.step import Network, Stepper, trained_model
from assay.training.trainer.trainer import Trainer, TrainingPosition, num_steps


def train_rank(
    task: RankTask, stop: StopFlag, began: Callable[[RankDevice], None] = lambda device: None
) -> Literal["finished", "stopped"]:
    """Train this rank's lanes to the last step, or until `stop` is set; evaluate after the last step.

    `began` is called with the rank's device once the process group is up.
    """
    recipe, faults = recipe_of(task.run), _faults(task, stop)
    clock, store = faults.clock, faults.store
    recorder = _recorder(task, faults)
    ranks = _ranks(task, recipe)
    began(rank_device(ranks.device))
    recorder.part("rendezvous")
    method = method_of(recipe.method)
    loader = _loader(recipe, "train")
    recorder.part("dataset")
    model = trained_model(method, recipe.trainer, seed=recipe.seed, device=ranks.device)
    lane_sum = _lane_sum(task, recipe, model, ranks, recorder, gathers=isinstance(method, RolloutMethod))
    lanes = lane_sum.shares.of_rank(ranks.rank)
    forward = _lane_forward(task, recipe, method, ranks, store, stop, lanes)
    optimizer = build_optimizer(model, recipe.trainer.optimizer)
    log = CommitLog(store, attempt=task.orders.attempt.attempt)
    saver = _saver(task, recipe, {**training_parts(model, optimizer), **forward.parts}, ranks, log, clock)
    recorder.part("model")
    position = _restored(saver, task.orders.commit, loader)
    evaluate = _evaluator(task, recipe, model, lane_sum, method, ranks, recorder)
    last_step = num_steps(recipe.trainer, loader)
    stepper = Stepper(
        forward,
        lane_sum,
        optimizer,
        ranks,
        config=recipe.trainer.optimizer,
        num_steps=last_step,
        spot_check=_spot_check(recipe, forward, model, lane_sum, ranks),
        times_lanes=task.orders.times_lanes,
    )
    trainer = Trainer(
        stepper=stepper,
        loader=loader,
        saver=saver,
        lanes=lanes,
        staleness=forward.staleness,
        recorder=recorder,
        clock=clock,
        config=recipe.trainer,
        schedule=CommitSchedule(recipe.trainer, clock, failure_s=task.orders.failure_s),
        evaluate=evaluate,
        stop_requested=lambda: stop.is_set,
    )
    recorder.part("restore")
    if ranks.rank == 0:
        recorder.event(_startup(task, clock, recorder.parts))
    _look_before_the_first_step(recipe, position, recorder, evaluate)
    outcome = trainer.train(position)
    if outcome == "finished":
        recorder.phase("evaluation")
        evaluate(last_step)
        _finish(log, ranks)
    _leave(task, saver, lane_sum, recorder, ranks)
    return outcome


def _look_before_the_first_step(
    recipe: Recipe, position: TrainingPosition, recorder: RankRecorder, evaluate: Callable[[int], float | None]
) -> None:
    """Evaluate sampled completions before step 1 of an RL run: the baseline that later scores are compared with."""
    predictions = recipe.method.predictions
    is_sampled = isinstance(predictions, RowScores) and predictions.is_sampled
    if position.step == 0 and recipe.trainer.evaluate_every is not None and is_sampled:
        recorder.phase("evaluation")
        evaluate(0)


def _leave(
    task: RankTask,
    saver: Saver,
    lane_sum: LaneSum | ShardedLaneSum,
    recorder: RankRecorder,
    ranks: Ranks,
) -> None:
    saver.close()
    lane_sum.close()
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


def _lane_forward(
    task: RankTask,
    recipe: Recipe,
    method: PredictingMethod,
    ranks: Ranks,
    store: ObjectStore,
    stop: StopFlag,
    lanes: Sequence[int],
) -> LaneForward:
    return LaneForward(
        method,
        device=ranks.device,
        precision=recipe.trainer.precision,
        seed=recipe.seed,
        max_micro_batch_tokens=recipe.loader.max_micro_batch_tokens,
        reward_cache=RewardCache(store, attempt=task.orders.attempt.attempt),
        is_stopping=lambda: stop.is_set,
        lanes=lanes,
    )


def _lane_sum(
    task: RankTask, recipe: Recipe, model: Network, ranks: Ranks, recorder: RankRecorder, *, gathers: bool
) -> LaneSum | ShardedLaneSum:
    shares = LaneShares(
        recipe.loader.lanes,
        ranks.world_size,
        interleaved=ranks.inner is not None,
        nodes=task.orders.nodes,
        explicit_loads=(task.orders.attempt.loads or None) if ranks.inner is None else None,
    )
    if ranks.inner is None:
        return LaneSum(model, ranks, shares, recipe.trainer.gradient_sum, enter_phase=recorder.phase)
    return ShardedLaneSum(
        model,
        ranks,
        shares,
        several_passes=recipe.loader.max_micro_batch_tokens is not None,
        gathers=gathers,
        enter_phase=recorder.phase,
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
    task: RankTask,
    recipe: Recipe,
    model: Network,
    lane_sum: LaneSum | ShardedLaneSum,
    method: PredictingMethod,
    ranks: Ranks,
    recorder: RankRecorder,
) -> Callable[[int], float | None]:
    """Return a function that scores the validation rows with the current weights, cached for the last step."""
    # Opened at the first evaluation, so that the first step does not wait for it.
    key = key_column(recipe.data.split)
    validation = cache(partial(_loader, recipe, "validation", () if key is None else (key,)))
    predictions = recipe.method.predictions

    def evaluate(step: int) -> float | None:
        """Write the predictions of `step`; return the validation metric on rank 0, None on other ranks."""
        full_model = lane_sum.whole_model() if isinstance(method, RolloutMethod) else model
        table = predict(full_model, method, validation(), ranks)
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


def _spot_check(
    recipe: Recipe, forward: LaneForward, model: Network, lane_sum: LaneSum | ShardedLaneSum, ranks: Ranks
) -> SpotCheck | None:
    """Return the spot check of lane gradients; None if `trainer.spot_check_every` is off."""
    trainer = recipe.trainer
    if trainer.spot_check_every is None:
        return None
    recomputer = (
        ShardedLaneRecomputer(forward, lane_sum)
        if isinstance(lane_sum, ShardedLaneSum)
        else LaneRecomputer(forward, model)
    )
    return SpotCheck(recomputer, lane_sum, ranks, is_due=trainer.is_spot_checked, seed=recipe.seed)


def _saver(
    task: RankTask,
    recipe: Recipe,
    parts: Mapping[str, StatefulPart],
    ranks: Ranks,
    log: CommitLog,
    clock: Clock,
) -> Saver:
    return Saver(
        parts,
        ranks,
        log,
        recipe.retention,
        clock,
        partial(_awaited, recipe.evaluation, log),
        retire=RetainedCheckpoints(log.store, clock).retire,
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
