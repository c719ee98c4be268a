"""Load the model of a commit, and score a run's held-out rows with it. One process, no ranks."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from assay.base.digest import canonical_json, sha256_of_json
from assay.base.errors import ConfigError, DamagedDataError, TrainingError
from assay.base.shapes import Shaped
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import key_column, split_view
from assay.data.loader.batch import MicroBatch
from assay.data.loader.loader import Loader
from assay.evals.config import Classification, HeldOutRows
from assay.evals.scorer import Identity, Scorer
from assay.evals.version import classification_version, held_out_version
from assay.records.commit import Commit
from assay.records.cursor import Cursor
from assay.records.run import Run
from assay.statistics.benchmark_items import ItemScore
from assay.store.commit_log import CommitLog, first_problem
from assay.store.objects import ObjectStore
from assay.training.checkpoint.parts import MODEL, model_state, restore_model
from assay.training.checkpoint.saver import weights_digest
from assay.training.checkpoint.store_files import read_commit
from assay.training.methods.registry import method_of
from assay.training.recipe import Recipe, recipe_of
from assay.training.trainer.method_config import BinaryPredictions, RowScores
from assay.training.trainer.step import initial_model

NATS_A_TOKEN = "nats a token"
SMALLEST_PROBABILITY = 2.0**-52
"""A confident error costs 36 nats, not infinity."""


def load_committed(run: Run, commit: Commit, store: ObjectStore) -> nn.Module:
    """Load a model with a commit's weights; raise `DamagedDataError` if its files differ from the committed ones."""
    if (problem := first_problem(store, commit)) is not None:
        _refuse_retired(run, commit, store)
        raise DamagedDataError(
            f"commit at step {commit.step} of '{run.run_id}': {problem}. Its weights are not "
            f"used: name an earlier commit ('assay runs audit {run.run_id} --deep' lists the intact ones)."
        )
    # Frozen weights are initialised or loaded as when the run started.
    model = load_initial(recipe_of(run))
    state = {MODEL: model_state(model)}
    read_commit(state, store, commit)
    restore_model(model, state[MODEL])
    if (found := weights_digest(model_state(model))) != commit.weights_digest:
        raise TrainingError(
            f"commit at step {commit.step} of '{run.run_id}': its weights have digest {found[:12]}…, the "
            f"commit says {commit.weights_digest[:12]}…. Was it made by another version of assay?"
        )
    return model.eval()


def load_initial(recipe: Recipe) -> nn.Module:
    """Return the model that a run of the recipe starts with."""
    return initial_model(method_of(recipe.method), seed=recipe.seed, device=torch.device("cpu"))


def digest_of(model: nn.Module) -> str:
    """Return the digest of the model's weights."""
    return weights_digest(model_state(model))


def _refuse_retired(run: Run, commit: Commit, store: ObjectStore) -> None:
    """Raise `ConfigError` if the run has deleted the commit for a newer one meanwhile; it is then not corrupt."""
    commits = CommitLog(store).commits()
    if commits and commit.folder not in [commit_.folder for commit_ in commits]:
        raise ConfigError(
            f"commit at step {commit.step} of '{run.run_id}' was deleted meanwhile for later ones, as the "
            f"recipe's retention says: the run goes on, and its last commit is of step {commits[-1].step}. Ask "
            "again; a larger retention.keep_last keeps commits longer."
        )


class _RowsScorer(Scorer):
    """Scores held-out rows in micro-batches, cut as in training; a chunk has about `chunk_items` rows.

    `assay data split` lists the rows that are copies of training rows.
    """

    def __init__(
        self, config: Classification | HeldOutRows, run: Run, model: nn.Module, columns: Iterable[str] = ()
    ) -> None:
        """Open the run's dataset at its own split; `columns` are read in addition to the method's."""
        recipe = recipe_of(run)
        self._model = model
        self._method = method_of(recipe.method)
        split = recipe.data.split
        dataset = Dataset.open(Path(recipe.data.dataset))
        view, manifest = split_view(dataset, split, "validation"), dataset.manifest
        self._cluster_column = key_column(split)
        read = dict.fromkeys([*recipe.method.columns, *filter(None, [self._cluster_column]), *columns])
        if absent := [name for name in read if name not in manifest.columns]:
            raise ConfigError(
                f"benchmark '{config.name}': dataset '{manifest.name}' has no column '{absent[0]}', only "
                f"{', '.join(manifest.columns)}."
            )
        self._loader = Loader(view, recipe.loader.for_evaluation(), tuple(read))
        rows_per_step = max(1, recipe.loader.global_batch_size)
        self._steps = max(1, config.chunk_items // rows_per_step)
        self.num_chunks = -(-self._loader.steps_per_epoch // self._steps)
        self._rows_sha256 = sha256_of_json([view.fingerprint, split.model_dump(mode="json")])

    def score_chunk(self, chunk: int) -> list[ItemScore]:
        first = chunk * self._steps
        count = min(self._steps, self._loader.steps_per_epoch - first)
        lanes = range(self._loader.config.lanes)
        shares = self._loader.shares(Cursor(epoch=0, step_in_epoch=first), lanes, count)
        return [
            item
            for share in shares
            for lane in share.lanes
            for batch in lane.micro_batches
            for item in self._items(batch)
        ]

    @torch.inference_mode()
    def _items(self, batch: MicroBatch) -> list[ItemScore]:
        device = next(self._model.parameters()).device
        predicted = {
            name: values.cpu().numpy()
            for name, values in self._method.predictions(self._model, self._method.tensors(batch, device)).items()
        }
        ids = [str(row) for row in batch.row_ids.tolist()]
        by = self._cluster_column
        clusters = ids if by is None else [str(value) for value in batch.columns[by].to_pylist()]
        return self._scored(batch, predicted, ids, clusters)

    def _scored(
        self,
        batch: MicroBatch,
        predicted: Mapping[str, Shaped[np.ndarray, "row"]],
        ids: Sequence[str],
        clusters: Sequence[str],
    ) -> list[ItemScore]:
        """Return the items of a micro-batch of rows."""
        raise NotImplementedError


class ClassificationScorer(_RowsScorer):
    """Scores whether a classifier is right about held-out rows, or its log-loss."""

    def __init__(self, config: Classification, run: Run, model: nn.Module) -> None:
        super().__init__(config, run, model)
        self._config = config
        self.identity = Identity(
            benchmark=config.name,
            benchmark_sha256=self._rows_sha256,
            **classification_version(config),
            prompt_sha256=_AS_THEY_ARE,
            unit="share" if config.score == "correct" else "nats",
            higher_is_better=config.score == "correct",
        )

    def _scored(
        self,
        batch: MicroBatch,  # noqa: ARG002
        predicted: Mapping[str, Shaped[np.ndarray, "row"]],
        ids: Sequence[str],
        clusters: Sequence[str],
    ) -> list[ItemScore]:
        of_rows = _of_two if "probability" in predicted else _of_several
        scores, shown, name = of_rows(predicted, self._config)
        return [
            ItemScore(item_id, cluster, score, details=f'{{"{name}":{detail!r}}}')
            for item_id, cluster, score, detail in zip(ids, clusters, scores.tolist(), shown.tolist(), strict=True)
        ]


class HeldOutScorer(_RowsScorer):
    """Scores held-out rows by a metric of the method; rows without scored tokens are left out.

    If the score is a mean over tokens, a row's weight is its number of tokens, so the total is the mean over all
    tokens.
    """

    def __init__(self, config: HeldOutRows, run: Run, model: nn.Module) -> None:
        """Raises `ConfigError` if the method has no such score."""
        super().__init__(config, run, model, config.where)
        predictions = recipe_of(run).method.predictions
        assert not isinstance(predictions, BinaryPredictions), "these are asked by type classification"
        named = {metric.name: metric for metric in predictions.metrics}
        if config.score is not None and config.score not in named:
            raise ConfigError(
                f"benchmark '{config.name}': score: {config.score} is not among those of run '{run.run_id}' of "
                f"method '{run.recipe['method']['type']}': {', '.join(named)}."
            )
        self._metric = predictions.metric if config.score is None else named[config.score]
        self._counted = predictions.counted if isinstance(predictions, RowScores) else None
        self._where = config.where
        self.identity = Identity(
            benchmark=config.name,
            benchmark_sha256=self._rows_sha256,
            **held_out_version(config),
            prompt_sha256=_AS_THEY_ARE,
            unit=self._metric.unit,
            higher_is_better=self._metric.higher_is_better,
        )

    def of_score(self, score: float) -> dict[str, float]:
        return {"perplexity": math.exp(score)} if self._metric.unit == NATS_A_TOKEN else {}

    def _scored(
        self,
        batch: MicroBatch,
        predicted: Mapping[str, Shaped[np.ndarray, "row"]],
        ids: Sequence[str],
        clusters: Sequence[str],
    ) -> list[ItemScore]:
        shown = sorted(set(predicted) - {self._metric.name, self._counted})
        weights = predicted[self._counted] if self._counted else np.ones(len(ids))
        return [
            ItemScore(
                ids[row],
                clusters[row],
                float(predicted[self._metric.name][row]),
                weight=float(weights[row]),
                details=canonical_json({name: float(predicted[name][row]) for name in shown}),
            )
            for row in np.flatnonzero(weights).tolist()
            if all(batch.columns[name][row].as_py() == value for name, value in self._where.items())
        ]


_AS_THEY_ARE = sha256_of_json(["rows as they are"])


_Scores = tuple[Shaped[np.ndarray, "row"], Shaped[np.ndarray, "row"], str]
"""Scores, the value shown for each row, and its name."""


def _of_two(predicted: Mapping[str, Shaped[np.ndarray, "row"]], config: Classification) -> _Scores:
    probabilities, labels = predicted["probability"], predicted["label"]
    if config.score == "correct":
        scores = ((probabilities >= 0.5) == (labels == 1)).astype(np.float64)
    else:
        of_label = np.where(labels == 1, probabilities, 1 - probabilities)
        scores = -np.log(np.maximum(of_label, SMALLEST_PROBABILITY))
    return scores, probabilities, "probability"


def _of_several(predicted: Mapping[str, Shaped[np.ndarray, "row"]], config: Classification) -> _Scores:
    column = "accuracy" if config.score == "correct" else "log_loss"
    return predicted[column], predicted["predicted"], "predicted"
