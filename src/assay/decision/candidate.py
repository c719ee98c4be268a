"""Candidates: patches on the known-good recipe, one change at a time.

    known-good recipe  +  {trainer.optimizer.learning_rate: 2e-3}  =  the candidate's recipe
                          one key: any difference in the result is due to it

Several keys are allowed with a warning, because a gain cannot be credited to one of them. Values are applied like
`a.b=value` overrides, so a patch means the same as on the command line.
"""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from assay.base.config import LoadedConfig, read_config_file, set_dotted
from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError
from assay.records.decision import Decision, KnownGood, Parent
from assay.records.statement import Statement

BASELINE = "baseline"
"""Default name of the arm without a patch."""

STAGE = "stage"
"""The only patch key of a candidate that is a stage of a pipeline, which has its own recipe."""

NOT_OF_A_RECIPE = frozenset({STAGE, "command", "runs"})
"""Keys of a decision's patch that change no recipe."""


def known_good_recipe(path: Path) -> tuple[LoadedConfig, KnownGood | None]:
    """Read the recipe that candidates are patches on: a recipe's YAML, or the `known_good.json` of a decision.

    A dataset's folder in a YAML file stays relative to the working directory of `assay`, as for `assay train`.
    """
    if path.suffix != ".json":
        loaded = read_config_file(path, [])
        # Records hold the recipe as JSON, which has no dates.
        return LoadedConfig(to_jsonable_python(loaded.values), loaded.origins, loaded.lines), None
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file.") from error
    known_good = KnownGood.from_json(text, source=path)
    return LoadedConfig(dict(known_good.recipe), {}), known_good


def patched(recipe: LoadedConfig, patch: Mapping[str, Any], *, arm: str, seed: int) -> LoadedConfig:
    """Return the recipe of one arm with one seed. The seed is used for the model and the order, which pairs the
    arms."""
    values, origins = deepcopy(recipe.values), dict(recipe.origins)
    seeds = {"seed": seed, "loader.seed": seed}
    for key, value in {**patch, **seeds}.items():
        set_dotted(values, key, value, where=f"in the recipe of candidate '{arm}'")
        origins[key] = f"seed {seed}" if key in seeds else f"candidate {arm}"
    return LoadedConfig(values, origins)


def warning_of_patch(candidate: str, patch: Mapping[str, Any]) -> Statement | None:
    """Return a warning about a patch that changes several keys; None for one key."""
    if len(patch) <= 1:
        return None
    return Statement(code="several changes", values={"candidate": candidate, "keys": list(patch)})


def known_good_after(
    decision: Decision, recipe: Mapping[str, Any], parent: KnownGood | None, *, name: str
) -> KnownGood:
    """Return the known-good recipe that a `scale` decision makes of the recipe that its candidate was a patch on.

    The next campaign names its file as the recipe; a rollback returns to the parent.
    """
    assert decision.recommendation == "scale", decision.recommendation
    seed = int(recipe.get("seed", 0))
    tree = patched(LoadedConfig(dict(recipe), {}), decision.patch, arm=decision.candidate, seed=seed).values
    step = Parent(
        recipe_sha256=sha256_of_json(dict(recipe)), candidate=decision.candidate, decision_sha256=decision.digest()
    )
    return KnownGood(
        name=name,
        recipe=tree,
        recipe_sha256=sha256_of_json(tree),
        patch=decision.patch,
        decision_sha256=decision.digest(),
        parent_recipe=dict(recipe),
        lineage=(*(parent.lineage if parent else ()), step),
    )
