"""Recipes: everything that decides what a run computes."""

from collections.abc import Mapping
from copy import deepcopy
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from assay.api.commands import check_overrides, path_text
from assay.base.config import LoadedConfig, read_config_file, validated, with_overrides
from assay.cli.wording import worded

if TYPE_CHECKING:
    from assay.api.datasets import Dataset


@worded
class Recipe:
    """A checked recipe, which does not change; `changed` makes another one."""

    def __init__(self, source: str | Path | Mapping[str, Any], *overrides: str) -> None:
        """`source`: a YAML file, or its values. `overrides`: such as `trainer.epochs=2`.

        Raises `AssayError` for a wrong or unknown key, with the line that it is on. Paths in it are relative to the
        working directory.
        """
        from assay.training.recipe import Recipe as Keys

        check_overrides(overrides)
        if isinstance(source, Mapping):
            loaded = with_overrides(LoadedConfig(deepcopy(dict(source)), {}), overrides)
        else:
            text = path_text(source, of="Recipe", hint="A recipe is a YAML file or a dictionary.")
            loaded = read_config_file(Path(text), overrides)
        self._keys = validated(Keys, loaded)
        self._values = loaded.values

    @classmethod
    def new(
        cls,
        dataset: "str | Path | Dataset",
        *,
        method: Literal["sft", "reward", "dpo", "grpo"] | None = None,
        model: str | Path | None = None,
        epochs: int | None = None,
        name: str | None = None,
    ) -> "Recipe":
        """Return a first recipe for a dataset and this machine, as `assay train new` writes it, but without comments.

        `method`: of a language model; by default sft for texts and chats, reward for pairs, grpo for prompts. `model`:
        folder of a pretrained model, by default a new, small one. `epochs`: by default chosen by the number of rows.
        `name`: of the recipe and its runs, by default the dataset's.
        """
        from assay.api.datasets import Dataset
        from assay.workflows.new_recipe import new_recipe

        folder = dataset.folder if isinstance(dataset, Dataset) else Dataset(dataset).folder
        model = None if model is None else str(model)
        found = new_recipe(folder, name=name, model=model, epochs=epochs, method=method)
        return cls(yaml.safe_load(found.text))

    @property
    def values(self) -> dict[str, Any]:
        """The keys that were given; the rest are defaults."""
        return deepcopy(self._values)

    def changed(self, *overrides: str) -> "Recipe":
        """Return the recipe with `overrides`, such as `trainer.optimizer.learning_rate=1e-4`."""
        return Recipe(self._values, *overrides)

    def resolved(self) -> dict[str, Any]:
        """Return all keys, with defaults."""
        return self._keys.model_dump(mode="json")

    def save(self, file: str | Path) -> Path:
        """Write the recipe as YAML to `file`, and return its path."""
        Path(file).write_text(str(self), encoding="utf-8")
        return Path(file)

    def __str__(self) -> str:
        return yaml.safe_dump(self._values, sort_keys=False, allow_unicode=True)

    def __repr__(self) -> str:
        return f"Recipe({self._keys.name!r}, {self._keys.method.type})"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"
