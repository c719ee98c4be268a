"""A candidate: a patch on the known-good recipe, one change at a time.

    known-good recipe  +  {trainer.optimizer.learning_rate: 2e-3}  =  the candidate's recipe
                          one key: whatever differs in the result is due to it

Two keys at once are allowed and warned of: a gain cannot be credited to either. Values are laid over the tree
as `a.b=value` overrides are, so that a patch means what it would mean on the command line.
"""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from assay.base.config import LoadedConfig, read_config_file, set_dotted
from assay.base.errors import ConfigError
from assay.records.decision import KnownGood

BASELINE = "baseline"
"""What the arm without a patch is called, unless the campaign says otherwise."""

STAGE = "stage"
"""The one key of the patch of a candidate that is a stage of a pipeline: its recipe is its own."""


def known_good_recipe(path: Path) -> tuple[LoadedConfig, KnownGood | None]:
    """The recipe that candidates are patches on: a recipe's YAML, or the `known_good.json` of a decision.

    A dataset's folder in a YAML file stays as written: relative to where `assay` is called, as for `assay
    train`.
    """
    if path.suffix != ".json":
        loaded = read_config_file(path, [])
        # YAML's dates are no JSON, and the recipe becomes part of records.
        return LoadedConfig(to_jsonable_python(loaded.values), loaded.origins, loaded.lines), None
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file.") from error
    known_good = KnownGood.from_json(text, source=path)
    return LoadedConfig(dict(known_good.recipe), {}), known_good


def patched(recipe: LoadedConfig, patch: Mapping[str, Any], *, arm: str, seed: int) -> LoadedConfig:
    """The recipe of one arm with one seed; `seed` is the model's and the order's, so arms are paired by it."""
    values, origins = deepcopy(recipe.values), dict(recipe.origins)
    seeds = {"seed": seed, "loader.seed": seed}
    for key, value in {**patch, **seeds}.items():
        set_dotted(values, key, value, where=f"in the recipe of candidate '{arm}'")
        origins[key] = f"seed {seed}" if key in seeds else f"candidate {arm}"
    return LoadedConfig(values, origins)


def warning_of_patch(arm: str, patch: Mapping[str, Any]) -> str | None:
    """What a reader must know of a patch that changes several things at once; None for one change."""
    if len(patch) <= 1:
        return None
    return (
        f"candidate '{arm}' changes {len(patch)} keys at once ({', '.join(patch)}): its effect cannot be "
        "credited to any one of them. Make a candidate of each."
    )
