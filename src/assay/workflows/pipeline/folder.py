"""Where a pipeline lies, and how it is begun: its declaration is written once, before the first run.

runs/campaigns/NAME/
  pipeline.json          Pipeline: what was declared
  models/                what stages ended with, as other stages begin with it: sft-s0-step70
  campaign.json, ...     where stages are compared: their campaign
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
from assay.workflows.campaign.folder import OpenCampaign, declare
from assay.workflows.pipeline.config import PipelineConfig, TrainedStage, comparison_of, read_pipeline

MODELS = "models"
"""Folder of a pipeline's exported models."""

_MAY_CHANGE = frozenset({"budget_device_hours", "workers"})


class GivenPipeline(NamedTuple):
    """A pipeline as its file has it, with the recipes of its stages; nothing is written yet."""

    file: Path
    config: PipelineConfig
    recipes: dict[str, LoadedConfig]
    """Stage -> its recipe, with its patch; seeds and earlier stages are still to be put in."""

    def stage(self, name: str) -> TrainedStage:
        """The stage of that name."""
        return next(each for each in self.config.stages if each.name == name)


class OpenPipeline(NamedTuple):
    """A pipeline that has been declared."""

    home: Home
    given: GivenPipeline
    campaign: OpenCampaign | None
    """That of what compares its stages; None where nothing is compared."""

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.home.campaigns / self.given.config.name


def given_pipeline(file: Path, overrides: tuple[str, ...] = ()) -> GivenPipeline:
    """What a file declares, with the recipes that it names."""
    config = read_pipeline(file, overrides)
    return GivenPipeline(
        file, config, {stage.name: _recipe(stage, file, config.name) for stage in config.stages}
    )


def _recipe(stage: TrainedStage, file: Path, pipeline: str) -> LoadedConfig:
    loaded = LoadedConfig({}, {})
    if stage.recipe is not None:
        loaded = read_config_file(file.parent / stage.recipe, [])
    # YAML's dates are no JSON, and the recipe becomes part of a record.
    values = to_jsonable_python(loaded.values)
    for key, value in stage.patch.items():
        set_dotted(values, key, deepcopy(value), where=f"in the recipe of stage '{stage.name}'")
    values.setdefault("name", f"{pipeline}-{stage.name}")
    return LoadedConfig(values, {**loaded.origins, **dict.fromkeys(stage.patch, f"{file}, stage {stage.name}")})


def declare_pipeline(home: Home, given: GivenPipeline, clock: Clock) -> OpenPipeline:
    """Write the pipeline down, or find it as declared; `ConfigError` where one of its name was another."""
    record = _record(given, clock)
    folder = home.campaigns / given.config.name
    if not home.has_pipeline(record.name) and record.name in home.campaign_names():
        raise ConfigError(f"'{record.name}' is a campaign in {home.folder}. Give the pipeline another name.")
    if not open_store(str(folder)).put_if_absent(PIPELINE_FILE, record.to_json().encode()):
        found = home.pipeline(record.name)
        _refuse_another(found, _record(given, clock))
    campaign = None
    if (compared := comparison_of(given.config, given.file.name)) is not None:
        baseline = given.recipes[compared.baseline]
        campaign = declare(home, compared, beside=given.file.parent, clock=clock, recipe=baseline)
    return OpenPipeline(home, given, campaign)


def _record(given: GivenPipeline, clock: Clock) -> Pipeline:
    tree = given.config.model_dump(mode="json", by_alias=True)
    declared = {key: value for key, value in tree.items() if key not in _MAY_CHANGE}
    recipes = {name: loaded.values for name, loaded in given.recipes.items()}
    return Pipeline(
        name=given.config.name,
        config=declared,
        recipes=recipes,
        config_sha256=sha256_of_json({"config": declared, "recipes": recipes}),
        beside=str(given.file.parent.resolve()),
        created_s=clock.now_s(),
    )


def _refuse_another(found: Pipeline, wanted: Pipeline) -> None:
    changes = [
        *_changes("", found.config, wanted.config),
        *_changes("recipe of stage ", found.recipes, wanted.recipes),
    ]
    if not changes:
        return
    raise ConfigError(
        f"pipeline '{found.name}' was declared with another {', '.join(changes[:4])}. Its stages "
        "build on one another, so what was declared before the first run cannot be changed afterwards: give "
        f"the pipeline another name, or restore the file. ({', '.join(sorted(_MAY_CHANGE))} may change.)"
    )


def _changes(prefix: str, before: Any, after: Any) -> Iterator[str]:
    """Dotted keys of what differs, the places in lists among them."""
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        before, after = dict(enumerate(before)), dict(enumerate(after))
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(each for each in after if each not in before)]:
            joint = "" if not prefix or prefix.endswith(" ") else "."
            yield from _changes(f"{prefix}{joint}{key}", before.get(key), after.get(key))
    elif before != after:
        yield prefix
