"""Base models, one file `models/NAME.yaml` each, and the recipe of a job that trains one.

    tokenizer: tokenizer.json          # relative to the file, absolute, or package:NAME/FOLDER
    chat_template: chatml              # if messages are rendered and the tokenizer has no template
    methods:
      classification:
        recipe: {loader: ..., method: ..., trainer: ...}      # a recipe without `name` and `data`
        auto: {n_epochs: 3, batch_size: 64}                   # values of `auto` hyperparameters

A job stores a copy of the file, so later edits affect later jobs only.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from assay.base.config import FrozenConfig, LoadedConfig, read_config_file, set_dotted, stored, validated
from assay.base.errors import AssayError, ConfigError
from assay.base.names import checked_name
from assay.serving.methods import SERVED_METHODS, WHOLE_NUMBERS, ServedMethod
from assay.training.recipe import Recipe

DEFAULT_KEEP_LAST = 3
"""Newest checkpoints that a job keeps if its recipe does not set `retention.keep_last`."""
_SOME_GRADER = {
    "type": "string_check",
    "name": "some",
    "input": "{{ sample.output_text }}",
    "reference": "",
    "operation": "eq",
}


class TrainableConfig(FrozenConfig):
    """Training of a base model by one method."""

    recipe: dict[str, Any]
    """A recipe without `name` and `data`. Paths are relative to the file."""

    auto: dict[str, float] = Field(default_factory=dict)
    """Hyperparameter -> value of `auto`. Others default to the recipe's value."""

    max_tokens: PositiveInt = 2048
    """Longer rows are truncated, or dropped if they cannot be truncated (see `assay data build`)."""

    validation_fraction: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Approximate share of the training file's texts that is held out, by a hash of the text, if a job has no
    validation file."""

    learning_rate: PositiveFloat | None = None
    """Factor of `learning_rate_multiplier`; None for the recipe's learning rate."""


class BaseModelConfig(FrozenConfig):
    """Contents of a base model's file."""

    tokenizer: str
    """A `tokenizer.json`, or a folder with one, relative to the file; or `package:NAME/FOLDER`."""

    chat_template: str | None = None
    """A .jinja file, relative to this file, or `chatml`. None for the tokenizer's own template."""

    owned_by: str = "assay"
    """`owned_by` in `models.list`."""

    workers: PositiveInt = 1
    """Ranks of a job's run."""

    methods: dict[str, TrainableConfig] = Field(min_length=1)
    """Keys are the API's method types: `classification`, `supervised`, `dpo`, `reinforcement`, `reward_model`.
    """

    @field_validator("methods")
    @classmethod
    def _methods_are_served(cls, methods: dict[str, TrainableConfig]) -> dict[str, TrainableConfig]:
        for name, method in methods.items():
            if name not in SERVED_METHODS:
                raise ValueError(f"'{name}' is not a supported method. Use one of: {', '.join(SERVED_METHODS)}")
            if unknown := sorted(set(method.auto) - set(SERVED_METHODS[name].hyperparameters)):
                raise ValueError(f"{name}.auto: '{unknown[0]}' is not a hyperparameter of this method")
            declared = method.recipe.get("method")
            kind = declared.get("type") if isinstance(declared, Mapping) else None
            if kind != SERVED_METHODS[name].recipe_type:
                expected = SERVED_METHODS[name].recipe_type
                raise ValueError(f"{name}.recipe.method.type is {kind!r}, but '{name}' trains by '{expected}'")
        return methods


class BaseModelFile(NamedTuple):
    """A base model with its name."""

    name: str
    config: BaseModelConfig
    created_s: float
    """Modification time of the file."""


def read_base_models(folder: Path) -> dict[str, BaseModelFile]:
    """Read and validate all models of a folder. Raises `ConfigError` at the first invalid one."""
    found = {path.stem: _read(path) for path in sorted(folder.glob("*.yaml"))}
    if not found:
        raise ConfigError(
            f"{folder}: the folder has no NAME.yaml, so no model can be trained. See docs/serve.md for an example."
        )
    return found


def stored_base(tree: Mapping[str, Any], *, where: str) -> BaseModelConfig:
    """Parse the copy of a model's file in a job's log."""
    return stored(BaseModelConfig, tree, where=where)


def requires_grader(recipe: Mapping[str, Any]) -> bool:
    """Return whether a job must bring a grader because the recipe has no rewards."""
    kinds = {method.recipe_type for method in SERVED_METHODS.values() if method.accepts_grader}
    return recipe["method"].get("type") in kinds and not recipe["method"].get("rewards")


def job_recipe(
    trainable: TrainableConfig,
    method: ServedMethod,
    hyperparameters: Mapping[str, Any],
    *,
    name: str,
    dataset: str,
    split: Mapping[str, Any],
    seed: int,
    grader: Mapping[str, Any] | None = None,
) -> LoadedConfig:
    """Return the recipe of a job. `hyperparameters`: the result of `concrete_hyperparameters`."""
    tree: dict[str, Any] = {**_with_grader(trainable.recipe, grader), "name": name, "seed": seed}
    tree["data"] = {"dataset": dataset, "split": dict(split)}
    set_dotted(tree, "loader.seed", seed, where="in the recipe")
    if "keep_last" not in template_recipe(trainable.recipe).retention.model_fields_set:
        set_dotted(tree, "retention.keep_last", DEFAULT_KEEP_LAST, where="in the recipe")
    for key, value in hyperparameters.items():
        if key == "learning_rate_multiplier":
            value = value * _learning_rate(trainable)
        set_dotted(tree, method.hyperparameters[key], value, where="in the recipe")
    return LoadedConfig(tree, {})


def concrete_hyperparameters(
    trainable: TrainableConfig, method: ServedMethod, requested: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a value for each hyperparameter: the requested one, else that of `auto`, else the recipe's."""
    recipe = template_recipe(trainable.recipe)
    found: dict[str, Any] = {}
    for name, key in method.hyperparameters.items():
        value = requested.get(name, "auto")
        if value == "auto" and name in trainable.auto:
            value = trainable.auto[name]
        elif value == "auto":
            value = 1.0 if name == "learning_rate_multiplier" else _dotted(recipe, key)
        found[name] = int(value) if name in WHOLE_NUMBERS and value is not None else value
    return found


def _with_grader(recipe: Mapping[str, Any], grader: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of the recipe with `grader` as its reward; without a grader, the recipe's rewards stay."""
    tree = _copied(recipe)
    if grader is not None:
        set_dotted(tree, "method.rewards", [{"grader": dict(grader)}], where="in the recipe")
    return tree


def _learning_rate(trainable: TrainableConfig) -> float:
    if trainable.learning_rate is not None:
        return trainable.learning_rate
    return template_recipe(trainable.recipe).trainer.optimizer.learning_rate


def template_recipe(template: Mapping[str, Any]) -> Recipe:
    """Validate the template as a recipe with a placeholder dataset and, if required, a placeholder grader."""
    tree = {**template, "name": "template", "data": {"dataset": ".", "split": {"type": "hash"}}}
    if requires_grader(template):
        tree = {**tree, **_with_grader(template, _SOME_GRADER)}
    return validated(Recipe, LoadedConfig(tree, {}))


def _read(path: Path) -> BaseModelFile:
    name = checked_name(path.stem, of=f"{path}: the model's name")
    if ":" in name:
        raise ConfigError(
            f"{path}: a model's name must not contain ':', the separator in trained models' names. Rename the file."
        )
    config = validated(BaseModelConfig, read_config_file(path, ()))
    methods = {}
    for method, trainable in config.methods.items():
        if reserved := sorted({"name", "data"} & set(trainable.recipe)):
            raise ConfigError(f"{path}: {method}.recipe: '{reserved[0]}' is set by each job. Remove it.")
        methods[method] = trainable.model_copy(update={"recipe": _with_paths(trainable.recipe, path.parent)})
        try:
            template_recipe(methods[method].recipe)
        except ConfigError as error:
            raise ConfigError(f"{path}: {method}.recipe: {error}") from error
    tokenizer = config.tokenizer
    if not tokenizer.startswith("package:"):
        tokenizer = str((path.parent / tokenizer).resolve())
        if not Path(tokenizer).exists():
            raise ConfigError(f"{path}: tokenizer {tokenizer}: no such file or folder.")
    _check_vocabulary(tokenizer, methods, path)
    changes = {"tokenizer": tokenizer, "chat_template": _template(config, tokenizer, path), "methods": methods}
    return BaseModelFile(name, config.model_copy(update=changes), path.stat().st_mtime)


def _check_vocabulary(tokenizer: str, methods: Mapping[str, TrainableConfig], path: Path) -> None:
    """Raise `ConfigError` if the tokenizer has ids for which the model has no embedding."""
    # Imported here, because listing models needs no tokenizers.
    from assay.data.dataset.checkpoint_tokens import check_embeddings, embedding_counts
    from assay.data.dataset.tokens import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    for name, trainable in methods.items():
        method = {"method": template_recipe(trainable.recipe).method.model_dump(mode="json")}
        for key, size in embedding_counts(method).items():
            check_embeddings(loaded, size, where=f"{path}: tokenizer {tokenizer}, {name}.recipe.{key}")


def _template(config: BaseModelConfig, tokenizer: str, path: Path) -> str | None:
    """Return the chat template after rendering it once, so that errors show at startup."""
    if config.chat_template is None:
        return None
    # Imported here, because most models have their own template.
    from assay.data.dataset.formats.template import load_template
    from assay.data.dataset.tokens import load_tokenizer, special_tokens, tokenizer_settings

    template_path = path.parent / config.chat_template
    named = str(template_path.resolve()) if template_path.is_file() else config.chat_template
    try:
        template = load_template(named, special_tokens(tokenizer_settings(tokenizer)))
        template.check_tokenizer(load_tokenizer(tokenizer), tokenizer)
    except AssayError as error:
        raise ConfigError(f"{path}: chat_template: {error}") from error
    return named


def _with_paths(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Make each existing relative `path` of the template absolute."""
    return {
        key: _with_paths(value, folder)
        if isinstance(value, Mapping)
        else str((folder / value).resolve())
        if key == "path" and isinstance(value, str) and (folder / value).exists()
        else value
        for key, value in tree.items()
    }


def _copied(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def _dotted(recipe: Recipe, key: str) -> Any:
    value: Any = recipe
    for part in key.split("."):
        value = getattr(value, part)
    return value
