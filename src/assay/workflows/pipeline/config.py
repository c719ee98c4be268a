"""Configuration of a pipeline: stages in training order.

    stages --+-- sft      recipe: sft.yaml
             +-- reward   recipe: reward.yaml
             +-- grpo     recipe: grpo.yaml, from: sft, rewards: [{run: stage:reward}]
    seeds, workers        as in a campaign; every stage is a run for each seed
    compare               benchmarks and rule to compare stages, as candidates of a campaign

A stage names earlier ones only, so there are no cycles. `stage:NAME` stands for the folder that NAME's last
commit is exported to, or for its run if a run is expected.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import yaml
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from assay.base.config import FrozenConfig, LoadedConfig, first_repeated, read_config_file, validated
from assay.base.errors import ConfigError
from assay.base.key_reference import key_reference
from assay.base.parsing.bounded_yaml import BoundedLoader, parse_yaml
from assay.decision.candidate import STAGE
from assay.decision.config import CampaignConfig, Name, StandardRule, SuiteBenchmark

PREFIX = "stage:"
BEST = "best"

CommitOfStage = Annotated[str, Field(pattern=rf"^[a-z0-9][a-z0-9_-]*(@{BEST})?$")]


class StageCommit(NamedTuple):
    """A commit of an earlier stage."""

    stage: str
    is_best: bool
    """Whether it is the best evaluated commit by the method's metric, not the last one."""

    @classmethod
    def named(cls, text: str) -> "StageCommit":
        """Parse `sft` or `sft@best`, with or without `stage:`."""
        stage, _, commit = text.removeprefix(PREFIX).partition("@")
        if commit not in ("", BEST):
            raise ConfigError(f"'{text}': expected {stage} (its last commit) or {stage}@{BEST}.")
        return cls(stage, commit == BEST)


class TrainedStage(FrozenConfig):
    """One run, for each seed."""

    also_called: ClassVar = {
        "base": "from",
        "init": "from",
        "start": "from",
        "overrides": "patch",
        "config": "recipe",
    }

    name: Name
    """Part of its runs' ids."""

    recipe: str | None = None
    """The recipe's file, relative to the pipeline's; null: `patch` is the whole recipe."""

    patch: dict[str, Any] = Field(default_factory=dict)
    """Dotted key of the recipe -> value, laid over the file. `stage:NAME` is an earlier stage: its model's
    folder (`method.reference.path: stage:sft`), or its run (`method.rewards: [{run: stage:reward}]`)."""

    from_: CommitOfStage | None = Field(default=None, alias="from")
    """The earlier stage with the initial model: its last commit replaces `method.model`; `sft@best`: its
    best evaluated commit. Adapters of the recipe stay, those of the earlier stage are merged. Null: the
    recipe names the model."""

    @model_validator(mode="after")
    def _has_a_recipe(self) -> "TrainedStage":
        if self.recipe is None and not self.patch:
            raise ValueError(f"stage '{self.name}' needs a recipe or a patch")
        if seeds := sorted({"seed", "loader.seed"} & set(self.patch)):
            raise ValueError(f"stage '{self.name}' patches {seeds[0]}, which the pipeline's seeds set")
        return self


class StageComparison(FrozenConfig):
    """A comparison of each stage with the first one, over the seeds: a campaign with stages as arms."""

    stages: tuple[Name, ...] = ()
    """Compared stages, the baseline first. Empty: the stages on the path to the last one, by `from`."""

    question: str = "What is each stage worth?"
    """What the memo answers."""

    benchmarks: tuple[SuiteBenchmark, ...] = Field(min_length=1)
    """Benchmarks of suites, the same for every stage."""

    rule: StandardRule
    """Rule that decides whether a stage is worth it."""

    dissent: tuple[str, ...] = ()
    """Objections by people, for the memo."""


class PipelineConfig(FrozenConfig):
    """Stages that build on one another: each is a run that starts from an earlier stage's model."""

    name: Name
    """Part of its runs' ids; its folder is `runs/campaigns/NAME`."""

    stages: tuple[TrainedStage, ...] = Field(min_length=1)
    """Stages in training order; each may refer to earlier ones."""

    seeds: PositiveInt = 1
    """Number of repetitions; `compare` needs 2 or more."""

    first_seed: int = Field(default=0, ge=0)
    """Number of the first seed."""

    workers: PositiveInt = 1
    """Ranks of each run. May change when it is run again."""

    budget_device_hours: PositiveFloat | None = None
    """Device-hours for training all runs; no run begins that would exceed it. Null: no limit. May change."""

    compare: StageComparison | None = None
    """Null: nothing is compared; the result is the last stage's model."""

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        return tuple(range(self.first_seed, self.first_seed + self.seeds))

    def compared(self) -> tuple[str, ...]:
        """Return the compared stages, the baseline first."""
        if self.compare is not None and self.compare.stages:
            return self.compare.stages
        by_name = {item.name: item for item in self.stages}
        line = [self.stages[-1]]
        while (origin := line[0].from_) is not None and (stage := StageCommit.named(origin).stage) in by_name:
            line.insert(0, by_name[stage])
            if len(line) > len(by_name):
                break  # a cycle, which is rejected when the file is read
        return tuple(item.name for item in line)

    @model_validator(mode="after")
    def _stage_names_are_unique(self) -> "PipelineConfig":
        names = [stage.name for stage in self.stages]
        if repeated := first_repeated(names):
            raise ValueError(f"two stages have the name '{repeated}'")
        if self.compare is None:
            return self
        if self.seeds < 2 or self.budget_device_hours is None:
            lack = ("a single seed cannot separate an effect from noise", "seeds: 2 or more")
            if self.seeds > 1:
                lack = ("a comparison needs a budget", "budget_device_hours")
            raise ValueError(f"compare: {lack[0]}. Give {lack[1]}")
        if absent := [stage for stage in self.compare.stages if stage not in names]:
            raise ValueError(f"compare.stages names '{absent[0]}'; the stages are {', '.join(names)}")
        origin = [StageCommit.named(stage.from_).stage for stage in self.stages if stage.from_ is not None]
        # Unknown stage names are rejected when the file is read, with their lines.
        if set(origin) <= set(names) and len(self.compared()) < 2:
            raise ValueError(
                "compare: there is only one stage to compare. Name two or more in compare.stages, the baseline first"
            )
        return self


def is_pipeline(file: Path) -> bool:
    """Return whether a file declares stages."""
    try:
        tree = parse_yaml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return False  # the next reader reports the error
    return isinstance(tree, dict) and "stages" in tree


def read_pipeline(file: Path, overrides: tuple[str, ...] = ()) -> PipelineConfig:
    """Read a pipeline file. Raises `ConfigError` with the line of a stage that names no earlier stage."""
    config = validated(PipelineConfig, read_config_file(file, overrides))
    before: list[str] = []
    for index, stage in enumerate(config.stages):
        for key, commit in stages_named(stage, stage.patch):
            if commit.stage not in before:
                raise ConfigError(
                    f"{file}, line {_line(file, index, key)}: stage '{stage.name}' names '{commit.stage}' "
                    f"({key}), which is not an earlier stage. Earlier stages: {', '.join(before) or 'none'}."
                )
        before.append(stage.name)
    comparison_of(config, file.name)
    return config


def stages_named(stage: TrainedStage, tree: Any) -> Iterator[tuple[str, StageCommit]]:
    """Yield each key with the earlier stage that it names; `tree` is the stage's patch or whole recipe."""
    if stage.from_ is not None:
        yield "from", StageCommit.named(stage.from_)
    for key, text in _texts(tree):
        if text.startswith(PREFIX):
            yield key, StageCommit.named(text)


def comparison_of(config: PipelineConfig, file: str) -> CampaignConfig | None:
    """Return the campaign whose arms are the stages; None if nothing is compared."""
    if config.compare is None:
        return None
    baseline, *others = config.compared()
    stages = {stage.name: stage for stage in config.stages}
    tree = {
        "name": config.name,
        "question": config.compare.question,
        "recipe": file,
        "baseline": baseline,
        "candidates": [{"name": text, "patch": {STAGE: _stage_text(stages[text])}} for text in others],
        "seeds": config.seeds,
        "first_seed": config.first_seed,
        "workers": config.workers,
        "budget_device_hours": config.budget_device_hours,
        "benchmarks": [benchmark.model_dump() for benchmark in config.compare.benchmarks],
        "rule": config.compare.rule.model_dump(),
        "dissent": config.compare.dissent,
    }
    return validated(CampaignConfig, LoadedConfig(tree, {}))


def pipeline_reference() -> str:
    """Return every key of a pipeline as Markdown, for `docs/pipeline.md`."""
    introduction = [
        "# Pipelines, key by key",
        "",
        "A pipeline is a YAML file (see pipelines.md) that `assay train` takes like a recipe; `a.b=value` on",
        "the command line overrides it; unknown keys are refused. This page is what",
        "`assay train keys pipeline` prints.",
    ]
    return key_reference(introduction, PipelineConfig)


def _stage_text(stage: TrainedStage) -> str:
    origin = f" from {stage.from_}" if stage.from_ else ""
    return f"{stage.recipe or 'a recipe of its own'}{origin}"


def _texts(tree: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(tree, str):
        yield prefix, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from _texts(value, f"{prefix}.{key}".lstrip("."))
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from _texts(value, f"{prefix}[{index}]")


def _line(file: Path, index: int, key: str) -> int:
    """Return the line (from 1) where a stage has a key, or starts."""
    node: Any = BoundedLoader(file.read_text(encoding="utf-8")).get_single_node()
    stages = next(value for name, value in node.value if name.value == "stages")
    node = stages.value[index]
    patch: list[Any] = next((value.value for name, value in node.value if name.value == "patch"), [])
    for name, _ in (*node.value, *patch):
        if name.value == key or key.startswith((f"{name.value}.", f"{name.value}[")):
            return int(name.start_mark.line) + 1
    return int(node.start_mark.line) + 1
