"""A recipe: everything that decides what a run computes. Equal recipes on equal data give equal weights.

It does not contain the number of ranks or where they run: both may change at each restart.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import NonNegativeInt, PositiveInt, SerializerFunctionWrapHandler, model_serializer, model_validator

from assay.base.config import FrozenConfig, stored
from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError
from assay.base.key_reference import key_reference
from assay.base.names import Name
from assay.data.dataset.split import SplitConfig
from assay.data.loader.config import LoaderConfig
from assay.models.causal_config import PACKS
from assay.records.run import Run
from assay.training.checkpoint.retention import RetentionConfig
from assay.training.methods.registry import AnyMethodConfig
from assay.training.outer.config import OuterConfig
from assay.training.trainer.config import TrainerConfig


class DataConfig(FrozenConfig):
    """The rows to train on."""

    also_called: ClassVar = {"path": "dataset", "folder": "dataset", "train": "dataset", "validation": "split"}

    dataset: str
    """Folder of the manifest that `assay data index` or `assay data build` wrote."""

    split: SplitConfig
    """Which rows are held out for validation."""


class EvaluationConfig(FrozenConfig):
    """Evaluation of commits on a suite, during training."""

    suite: str
    """File (docs/suites.md)."""

    every_steps: PositiveInt | None = None
    """A multiple of `trainer.commit_every`; null: every commit. The last one is always evaluated."""

    max_waiting: PositiveInt = 8
    """Most checkpoints that wait beyond `retention`; then the oldest is dropped."""

    def is_evaluated(self, step: int) -> bool:
        """Return whether a commit of this step is evaluated, apart from the last one."""
        return self.every_steps is None or step % self.every_steps == 0


class Recipe(FrozenConfig):
    """One training run."""

    also_called: ClassVar = {"random_seed": "seed", "model": "method", "eval": "evaluation", "checkpoint": "retention"}

    name: Name
    """Part of the run's id."""

    seed: NonNegativeInt = 0
    """Seed of the initial weights and of dropout."""

    data: DataConfig

    loader: LoaderConfig

    method: AnyMethodConfig

    trainer: TrainerConfig = TrainerConfig()

    retention: RetentionConfig = RetentionConfig()

    evaluation: EvaluationConfig | None = None
    """Null: the validation split only."""

    outer: OuterConfig | None = None
    """Training over several clusters (docs/outer.md); null: on one. Left out of the record if null."""

    @model_serializer(mode="wrap")
    def _as_recorded(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `outer` out if it is null, so that digests of recipes without it stay the same."""
        tree: dict[str, Any] = write(self)
        if self.outer is None:
            tree.pop("outer", None)
        return tree if self.version == 1 else {"version": self.version, **tree}

    @model_validator(mode="after")
    def _the_method_takes_the_layout(self) -> "Recipe":
        if self.loader.layout.type == "packed" and not self.method.takes_packed_rows:
            raise ValueError(
                f"loader.layout.type=packed: method '{self.method.type}' does not support it. Use bucketed"
            )
        if self.loader.layout.type == "line" and not self.method.takes_lines:
            raise ValueError(
                f"loader.layout.type=line: method '{self.method.type}' does not support it, or its model's attention "
                "is not known (a causal model without dropout in its attention is needed, of these types: "
                f"{', '.join(sorted(PACKS))}). Use bucketed: its passes change their shape, so a GPU waits for the "
                "host to start each kernel"
            )
        return self

    @model_validator(mode="after")
    def _clusters_can_share_it(self) -> "Recipe":
        if self.outer is None:
            return self
        if self.method.completions_per_prompt is not None:
            raise ValueError(
                f"outer: method '{self.method.type}' samples its rows; several clusters train dataset rows"
            )
        if self.loader.on_damage != "fail":
            raise ValueError(
                "outer: with loader.on_damage=quarantine, clusters would skip different rows of a lane. Use fail"
            )
        if self.loader.lanes < self.outer.clusters:
            raise ValueError(
                f"outer.clusters={self.outer.clusters}: loader.lanes={self.loader.lanes} gives each at most one lane"
            )
        evaluate_every = self.trainer.evaluate_every
        if evaluate_every is not None and evaluate_every % self.outer.every:
            raise ValueError(
                f"trainer.evaluate_every={evaluate_every} is not a multiple of outer.every={self.outer.every}: the "
                "weights that all clusters share are those after an outer step"
            )
        return self

    @model_validator(mode="after")
    def _programs_are_exact(self) -> "Recipe":
        if self.trainer.compile and (self.loader.layout.type == "packed" or not self.method.may_compile):
            raise ValueError(
                "trainer.compile: it is only known to be exact for sft, reward and dpo without lora, on rows that "
                "are not packed (lines are). Leave it out"
            )
        return self

    @model_validator(mode="after")
    def _benchmarks_are_run_at_commits(self) -> "Recipe":
        steps, commit_every = self.evaluation and self.evaluation.every_steps, self.trainer.commit_every
        if steps and (commit_every == "auto" or steps % commit_every):
            raise ValueError(
                f"evaluation.every_steps={steps} is not a multiple of trainer.commit_every={commit_every}: "
                "only commits can be evaluated"
            )
        return self


def recipe_of(run: Run) -> Recipe:
    """Return the recipe in a run's record.

    Raises `ConfigError` if a key cannot be read by this version, or if the recipe was changed after the run began.
    """
    run.check_trained_here()
    where = f"run '{run.run_id}': its recipe"
    recipe = stored(Recipe, run.recipe, where=where, wrote=run.code_version)
    found = recipe_sha256(run.recipe, run.dataset_fingerprint)
    if found != run.recipe_sha256:
        raise ConfigError(
            f"{where} or its dataset's fingerprint was changed after the run began: their sha256 is "
            f"{found[:12]}…, the record says {run.recipe_sha256[:12] or 'nothing'}…. Restore "
            f"{run.run_dir}/run.json, or train the changed recipe as a new run."
        )
    return recipe


def recipe_sha256(tree: Mapping[str, Any], dataset_fingerprint: str) -> str:
    """Return the SHA-256 of what decides the weights: without the dataset's location and the evaluation."""
    decisive = {key: value for key, value in tree.items() if key != "evaluation"}
    return sha256_of_json({**decisive, "data": {**tree["data"], "dataset": dataset_fingerprint}})


def recipe_reference() -> str:
    """Return all keys of a recipe as Markdown; `docs/recipe.md` holds it."""
    introduction = [
        "# Recipes, key by key",
        "",
        "A recipe is a YAML file; `a.b=value` on the command line overrides it; unknown keys are refused.",
        "This page is what `assay train keys` prints.",
    ]
    return key_reference(introduction, Recipe)
