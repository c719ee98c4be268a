"""A resolved recipe for records that only stand for a run: whole, so that `recipe_of` reads it."""

from typing import Any

from assay.training.recipe import Recipe


def tiny_recipe(**sections: Any) -> dict[str, Any]:
    """As `run.json` holds it, with some sections given."""
    arguments = {
        "name": "tiny",
        "data": {"dataset": "d", "split": {"type": "hash", "validation_fraction": 0.1}},
        "loader": {},
        "method": {"encoder": {"type": "new", "vocab_size": 99, "hidden_size": 16}},
        **sections,
    }
    return Recipe.model_validate(arguments).model_dump(mode="json")
