"""A base model is a file: `models/NAME.yaml`. What clients call it, and what a job that names it becomes.

    tokenizer: tokenizer.json          # beside the file, or absolute, or package:NAME/FOLDER
    chat_template: chatml              # where messages are rendered, and the tokenizer comes with none
    methods:
      classification:
        recipe: {loader: ..., method: ..., trainer: ...}      # a recipe without `name` and `data`
        auto: {n_epochs: 3, batch_size: 64}                   # what `auto` stands for

A job keeps the file as it was when it was created: whoever changes it changes later jobs only.
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

KEPT_CHECKPOINTS = 3
"""The newest ones that a job keeps, where its template says nothing."""
_SOME_GRADER = {
    "type": "string_check",
    "name": "some",
    "input": "{{ sample.output_text }}",
    "reference": "",
    "operation": "eq",
}


class TrainableConfig(FrozenConfig):
    """How a base model is trained by one method."""

    recipe: dict[str, Any]
    """A recipe without `name` and `data`, which each job has its own of. Paths in it are relative to the
    file."""

    auto: dict[str, float] = Field(default_factory=dict)
    """Hyperparameter -> what `auto` stands for. One that is absent has the recipe's own value."""

    max_tokens: PositiveInt = 2048
    """Longer rows are cut, or left out where they cannot be (see `assay data build`)."""

    validation_fraction: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Share of the training file's texts, about: held out by the hash of the text where a job has no validation
    file."""

    learning_rate: PositiveFloat | None = None
    """What `learning_rate_multiplier` multiplies; None for the recipe's."""


class BaseModelConfig(FrozenConfig):
    """What a model's file says."""

    tokenizer: str
    """A `tokenizer.json`, or a folder with one, relative to the file; or `package:NAME/FOLDER`."""

    chat_template: str | None = None
    """A .jinja file, relative to the file, or `chatml`: renders messages. None for the tokenizer's own."""

    owned_by: str = "assay"
    """What `models.list` says."""

    workers: PositiveInt = 1
    """Ranks of a job's run."""

    methods: dict[str, TrainableConfig] = Field(min_length=1)
    """By the API's word: `classification`, `supervised`, `dpo`, `reinforcement`, `reward_model`."""

    @field_validator("methods")
    @classmethod
    def _methods_are_served(cls, methods: dict[str, TrainableConfig]) -> dict[str, TrainableConfig]:
        for name, method in methods.items():
            if name not in SERVED_METHODS:
                raise ValueError(
                    f"'{name}' is none of the methods that are served: {', '.join(SERVED_METHODS)}"
                )
            if unknown := sorted(set(method.auto) - set(SERVED_METHODS[name].hyperparameters)):
                raise ValueError(f"{name}.auto: '{unknown[0]}' is no hyperparameter of it")
            said = method.recipe.get("method")
            kind = said.get("type") if isinstance(said, Mapping) else None
            if kind != SERVED_METHODS[name].recipe_type:
                wanted = SERVED_METHODS[name].recipe_type
                raise ValueError(f"{name}.recipe.method.type is {kind!r}, but '{name}' trains by '{wanted}'")
        return methods


class BaseModelFile(NamedTuple):
    """One model that can be trained."""

    name: str
    config: BaseModelConfig
    created_s: float
    """When the file was last changed."""


def read_base_models(folder: Path) -> dict[str, BaseModelFile]:
    """Every model of a folder, checked, by name; `ConfigError` names the first thing that is wrong."""
    found = {path.stem: _read(path) for path in sorted(folder.glob("*.yaml"))}
    if not found:
        raise ConfigError(
            f"{folder}: no NAME.yaml there, so no model could be trained. docs/serve.md shows one."
        )
    return found


def stored_base(tree: Mapping[str, Any], *, where: str) -> BaseModelConfig:
    """A model's file as a job's log holds it."""
    return stored(BaseModelConfig, tree, where=where)


def asks_for_grader(recipe: Mapping[str, Any]) -> bool:
    """Whether a job of this template has to say what pays answers, since the template does not."""
    kinds = {method.recipe_type for method in SERVED_METHODS.values() if method.takes_grader}
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
    """The recipe of a job; `hyperparameters` are those of `concrete_hyperparameters`."""
    tree: dict[str, Any] = {**_with_grader(trainable.recipe, grader), "name": name, "seed": seed}
    tree["data"] = {"dataset": dataset, "split": dict(split)}
    set_dotted(tree, "loader.seed", seed, where="in the recipe")
    if "keep_last" not in template_recipe(trainable.recipe).retention.model_fields_set:
        set_dotted(tree, "retention.keep_last", KEPT_CHECKPOINTS, where="in the recipe")
    for key, value in hyperparameters.items():
        if key == "learning_rate_multiplier":
            value = value * _learning_rate(trainable)
        set_dotted(tree, method.hyperparameters[key], value, where="in the recipe")
    return LoadedConfig(tree, {})


def concrete_hyperparameters(
    trainable: TrainableConfig, method: ServedMethod, asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Every hyperparameter with its number: what was asked, else what `auto` stands for, else the recipe's."""
    recipe = template_recipe(trainable.recipe)
    found: dict[str, Any] = {}
    for name, key in method.hyperparameters.items():
        value = asked.get(name, "auto")
        if value == "auto" and name in trainable.auto:
            value = trainable.auto[name]
        elif value == "auto":
            value = 1.0 if name == "learning_rate_multiplier" else _dotted(recipe, key)
        found[name] = int(value) if name in WHOLE_NUMBERS and value is not None else value
    return found


def _with_grader(recipe: Mapping[str, Any], grader: Mapping[str, Any] | None) -> dict[str, Any]:
    """A recipe, copied, whose rewards are a job's grader; the template's stay where a job says none."""
    tree = _copied(recipe)
    if grader is not None:
        set_dotted(tree, "method.rewards", [{"grader": dict(grader)}], where="in the recipe")
    return tree


def _learning_rate(trainable: TrainableConfig) -> float:
    if trainable.learning_rate is not None:
        return trainable.learning_rate
    return template_recipe(trainable.recipe).trainer.optimizer.learning_rate


def template_recipe(template: Mapping[str, Any]) -> Recipe:
    """The template as a recipe on some dataset; where each job says what pays, for something that pays."""
    tree = {**template, "name": "template", "data": {"dataset": ".", "split": {"type": "hash"}}}
    if asks_for_grader(template):
        tree = {**tree, **_with_grader(template, _SOME_GRADER)}
    return validated(Recipe, LoadedConfig(tree, {}))


def _read(path: Path) -> BaseModelFile:
    name = checked_name(path.stem, of=f"{path}: the model's name")
    if ":" in name:
        raise ConfigError(
            f"{path}: ':' in a model's name would be read as a part of a trained model's. Rename it."
        )
    config = validated(BaseModelConfig, read_config_file(path, ()))
    methods = {}
    for method, trainable in config.methods.items():
        if taken := sorted({"name", "data"} & set(trainable.recipe)):
            raise ConfigError(f"{path}: {method}.recipe: '{taken[0]}' is each job's own. Leave it out.")
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
    _refuse_other_tokens(tokenizer, methods, path)
    changes = {"tokenizer": tokenizer, "chat_template": _template(config, tokenizer, path), "methods": methods}
    return BaseModelFile(name, config.model_copy(update=changes), path.stat().st_mtime)


def _refuse_other_tokens(tokenizer: str, methods: Mapping[str, TrainableConfig], path: Path) -> None:
    """Raise where a model has no embedding for a token that a client may write."""
    # Here, as the command line that lists models needs no tokenizers.
    from assay.data.dataset.checkpoint_tokens import embedding_counts, refuse_larger
    from assay.data.dataset.tokens import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    for name, trainable in methods.items():
        method = {"method": template_recipe(trainable.recipe).method.model_dump(mode="json")}
        for key, size in embedding_counts(method).items():
            refuse_larger(loaded, size, where=f"{path}: tokenizer {tokenizer}, {name}.recipe.{key}")


def _template(config: BaseModelConfig, tokenizer: str, path: Path) -> str | None:
    """The chat template, rendered once, so that what is wrong shows before a job or a client needs it."""
    if config.chat_template is None:
        return None
    # Here, since most models come with their own.
    from assay.data.dataset.formats.template import load_template
    from assay.data.dataset.tokens import load_tokenizer, special_tokens, tokenizer_settings

    beside = path.parent / config.chat_template
    named = str(beside.resolve()) if beside.is_file() else config.chat_template
    try:
        template = load_template(named, special_tokens(tokenizer_settings(tokenizer)))
        template.check_tokenizer(load_tokenizer(tokenizer), tokenizer)
    except AssayError as error:
        raise ConfigError(f"{path}: chat_template: {error}") from error
    return named


def _with_paths(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Every `path` of the template that lies beside the file, as an absolute one."""
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
