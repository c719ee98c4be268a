"""Promote a candidate's recipe to the known-good recipe, with its lineage.

    recipe's file --> faster (decision 3f..) --> longer (decision a1..) --> ...

The next campaign names the `known_good.json` as its recipe. A rollback returns to the parent.
"""

from collections.abc import Mapping
from typing import Any

from assay.base.config import LoadedConfig
from assay.base.digest import sha256_of_json
from assay.decision.candidate import patched
from assay.records.decision import Decision, KnownGood, Parent


def known_good_after(
    decision: Decision, recipe: Mapping[str, Any], parent: KnownGood | None, *, name: str
) -> KnownGood:
    """Return the known-good recipe that a `scale` decision makes of the recipe that its candidate was a patch on."""
    assert decision.recommendation == "scale", decision.recommendation
    loaded = LoadedConfig(dict(recipe), {})
    seed = int(recipe.get("seed", 0))
    tree = patched(loaded, decision.patch, arm=decision.candidate, seed=seed).values
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
