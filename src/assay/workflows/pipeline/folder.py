"""The folder of a pipeline and its declaration, which is written once, before the first run.

runs/campaigns/NAME/
  pipeline.json          Pipeline: what was declared
  models/                exported models that later stages start from: sft-s0-step70
  campaign.json, ...     the campaign that compares the stages
runs/NAME-STAGE-sSEED/   an ordinary run of one stage with one seed
"""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import to_jsonable_python

from assay.base.clock import Clock
from assay.base.config import LoadedConfig, read_config_file, set_dotted
from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError
from assay.records.pipeline import Pipeline
from assay.store.home import PIPELINE_FILE, Home
from assay.store.objects import open_store
from assay.workflows.campaign.folder import LoadedCampaign, OpenCampaign, declare
from assay.workflows.pipeline.config import PipelineConfig, TrainedStage, comparison_of, read_pipeline

MODELS = "models"
"""Folder of a pipeline's exported models."""

_MAY_CHANGE = frozenset({"budget_device_hours", "workers"})


class LoadedPipeline(NamedTuple):
    """A pipeline file with the recipes of its stages; nothing is written yet."""

    file: Path
    config: PipelineConfig
    recipes: dict[str, LoadedConfig]
    """Recipe of each stage with its patch, before seeds and earlier stages are filled in."""

    def stage(self, name: str) -> TrainedStage:
        return next(item for item in self.config.stages if item.name == name)


class OpenPipeline(NamedTuple):
    """A declared pipeline."""

    home: Home
    declared: LoadedPipeline
    campaign: OpenCampaign | None
    """The campaign that compares its stages; None if nothing is compared."""

    @property
    def folder(self) -> Path:
        return self.home.campaigns / self.declared.config.name


def load_pipeline(file: Path, overrides: tuple[str, ...] = ()) -> LoadedPipeline:
    """Read a pipeline file and the recipes that it names."""
    config = read_pipeline(file, overrides)
    return LoadedPipeline(file, config, {stage.name: _recipe(stage, file, config.name) for stage in config.stages})


def _recipe(stage: TrainedStage, file: Path, pipeline: str) -> LoadedConfig:
    recipe = LoadedConfig({}, {})
    if stage.recipe is not None:
        recipe = read_config_file(file.parent / stage.recipe, [])
    # The recipe becomes part of a JSON record, which has no dates.
    values = to_jsonable_python(recipe.values)
    for key, value in stage.patch.items():
        set_dotted(values, key, deepcopy(value), where=f"in the recipe of stage '{stage.name}'")
    values.setdefault("name", f"{pipeline}-{stage.name}")
    return LoadedConfig(values, {**recipe.origins, **dict.fromkeys(stage.patch, f"{file}, stage {stage.name}")})


def declare_pipeline(home: Home, declared: LoadedPipeline, clock: Clock) -> OpenPipeline:
    """Write the declaration of a pipeline, or find the existing one. Raises `ConfigError` if it differs."""
    record = _record(declared, clock)
    folder = home.campaigns / declared.config.name
    if not home.has_pipeline(record.name) and record.name in home.campaign_names():
        raise ConfigError(f"'{record.name}' is a campaign in {home.folder}. Give the pipeline another name.")
    if not open_store(str(folder)).put_if_absent(PIPELINE_FILE, record.to_json().encode()):
        found = home.pipeline(record.name)
        _refuse_another(found, _record(declared, clock))
    campaign = None
    if (compared := comparison_of(declared.config, declared.file.name)) is not None:
        baseline = declared.recipes[compared.baseline]
        campaign = declare(LoadedCampaign(home, compared, declared.file.parent, baseline), clock)
    return OpenPipeline(home, declared, campaign)


def _record(declared: LoadedPipeline, clock: Clock) -> Pipeline:
    tree = declared.config.model_dump(mode="json", by_alias=True)
    fixed = {key: value for key, value in tree.items() if key not in _MAY_CHANGE}
    recipes = {name: recipe.values for name, recipe in declared.recipes.items()}
    return Pipeline(
        name=declared.config.name,
        config=fixed,
        recipes=recipes,
        config_sha256=sha256_of_json({"config": fixed, "recipes": recipes}),
        base_dir=str(declared.file.parent.resolve()),
        created_s=clock.now_s(),
    )


def _refuse_another(found: Pipeline, requested: Pipeline) -> None:
    changes = [
        *_changes("", found.config, requested.config),
        *_changes("recipe of stage ", found.recipes, requested.recipes),
    ]
    if not changes:
        return
    raise ConfigError(
        f"pipeline '{found.name}' was declared with another {', '.join(changes[:4])}. Its stages "
        "build on one another, so what was declared before the first run cannot be changed afterwards: give "
        f"the pipeline another name, or restore the file. ({', '.join(sorted(_MAY_CHANGE))} may change.)"
    )


def _changes(prefix: str, before: Any, after: Any) -> Iterator[str]:
    """Yield the dotted keys that differ, including indices of lists."""
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        before, after = dict(enumerate(before)), dict(enumerate(after))
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(item for item in after if item not in before)]:
            joint = "" if not prefix or prefix.endswith(" ") else "."
            yield from _changes(f"{prefix}{joint}{key}", before.get(key), after.get(key))
    elif before != after:
        yield prefix
