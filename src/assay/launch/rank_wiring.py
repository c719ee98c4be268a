"""Wires one rank's objects and trains: the only place where a method, a loader and a store meet."""

from pathlib import Path
from typing import Literal

from assay.base.clock import SystemClock
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.data.loader.loader import Loader
from assay.evaluation.evidence.predictions import PREDICTIONS_FILE, evaluation_folder
from assay.evaluation.suite.classification import predict, validation_auc, write_predictions
from assay.launch.rank import RankTask, StopFlag
from assay.records.commit import RunFinished
from assay.records.cursor import Cursor
from assay.store.commit_log import CommitLog
from assay.store.metrics.segment import SegmentWriter, segment_path
from assay.store.objects import open_store
from assay.training.checkpoint.saver import Saver
from assay.training.methods.classify.method import ClassifyMethod
from assay.training.parallel.lane_sum import LaneSum
from assay.training.parallel.ranks import Ranks
from assay.training.recipe import Recipe
from assay.training.trainer.optimizer import build_optimizer
from assay.training.trainer.step import Stepper, initial_model
from assay.training.trainer.trainer import Place, Trainer, num_steps


def train_rank(task: RankTask, stop: StopFlag) -> Literal["finished", "stopped"]:
    """Train this rank's lanes to the end, or until `stop` is set; evaluate at the end."""
    run, attempt = task.run, task.attempt
    clock = SystemClock()
    recorder = SegmentWriter(
        segment_path(Path(run.run_dir), attempt.attempt, task.rank),
        run_id=run.run_id,
        attempt=attempt.attempt,
        rank=task.rank,
        clock=clock,
    )
    recorder.phase("startup")
    recipe = Recipe.model_validate(run.recipe)
    ranks = Ranks.join(
        rank=task.rank,
        world_size=attempt.world_size,
        rendezvous=Path(task.rendezvous),
        num_threads=recipe.trainer.threads_per_rank,
    )
    method = ClassifyMethod(recipe.method)
    dataset = Dataset.open(Path(recipe.data.dataset))
    loader, validation = (
        Loader(split_view(dataset, recipe.data.split, part), recipe.loader, method.columns)
        for part in ("train", "validation")
    )
    model = initial_model(method, seed=recipe.seed, device=ranks.device)
    optimizer = build_optimizer(model, recipe.trainer.optimizer)
    lane_sum = LaneSum(model, ranks, recipe.trainer.gradient_sum, enter_phase=recorder.phase)
    log = CommitLog(open_store(run.store_url), attempt=attempt.attempt)
    saver = Saver(model, optimizer, ranks, log, recipe.retention, clock)
    place = Place(0, Cursor())
    if task.commit is not None:
        saver.restore(task.commit)
        place = Place(task.commit.step, task.commit.cursor)

    def evaluate(step: int) -> float | None:
        table = predict(model, method, validation, ranks)
        if table is None:
            return None
        folder = evaluation_folder(Path(run.run_dir), step=step, split="validation")
        write_predictions(table, folder / PREDICTIONS_FILE)
        metric = validation_auc(table)
        if metric is not None:
            recorder.log(step, {"validation_auc": metric})
        return metric

    trainer = Trainer(
        stepper=Stepper(
            method,
            lane_sum,
            optimizer,
            ranks,
            config=recipe.trainer.optimizer,
            precision=recipe.trainer.precision,
            seed=recipe.seed,
            num_steps=num_steps(recipe.trainer, loader),
        ),
        loader=loader,
        saver=saver,
        ranks=ranks,
        recorder=recorder,
        clock=clock,
        config=recipe.trainer,
        evaluate=evaluate,
        stop_asked=lambda: stop.is_set,
    )
    outcome = trainer.train(place)
    if outcome == "finished":
        recorder.phase("evaluation")
        evaluate(num_steps(recipe.trainer, loader))
        if ranks.rank == 0:
            last = log.commits()[-1]
            log.append(RunFinished(attempt=attempt.attempt, step=last.step, weights_digest=last.weights_digest))
    saver.close()
    lane_sum.close()
    recorder.phase("idle")
    recorder.close()
    ranks.leave()
    return outcome
