"""`method` of a job: which it is, its hyperparameters, and what pays answers where it learns from that."""

from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from assay.base.config import validated
from assay.base.errors import ConfigError
from assay.scoring.graders import Grader, check_sample_fields
from assay.serving.base_models import BaseModelFile, asks_for_grader, concrete_hyperparameters, job_recipe
from assay.serving.methods import DEFAULT_METHOD, SERVED_METHODS, WHOLE_NUMBERS, ServedMethod
from assay.serving.openai.bodies import JobBody
from assay.serving.refusal import RefusedError
from assay.training.recipe import Recipe

_GRADER: TypeAdapter[Grader] = TypeAdapter(Grader)


class AskedMethod(NamedTuple):
    """What a job asks for."""

    method: ServedMethod
    hyperparameters: dict[str, Any]
    """As they were asked for, `auto` too."""
    grader: dict[str, Any] | None


def asked_method(base: BaseModelFile, body: JobBody) -> AskedMethod:
    """What is asked for, checked: the method is the model's, hyperparameters and grader are the method's."""
    there = list(base.config.methods)
    name = DEFAULT_METHOD if DEFAULT_METHOD in there else there[0]
    if body.method is not None:
        name = body.method.type
    if name not in there:
        raise RefusedError(
            f"Model '{base.name}' is not trained by {name!r:.60}; it is by: {', '.join(there)}.",
            param="method.type",
            code="method_not_served",
        )
    method = SERVED_METHODS[name]
    inside = {} if body.method is None else _inside(method, body.method.model_dump())
    asked: dict[str, Any] = inside.get("hyperparameters") or {}
    if body.hyperparameters is not None:
        if asked:
            raise RefusedError(
                "hyperparameters are given twice; leave out the old form and keep those of 'method'.",
                param="hyperparameters",
                code="invalid_value",
            )
        asked = body.hyperparameters
    for key, value in asked.items():
        _check_hyperparameter(method, key, value)
    kept = {key: value for key, value in asked.items() if key not in method.left_to_us}
    return AskedMethod(method, kept, _grader(method, base, inside.get("grader")))


def check_recipe(base: BaseModelFile, asked: AskedMethod) -> None:
    """Refuse hyperparameters that make no recipe: together with the model's, they may be out of its bounds."""
    method, trainable = asked.method, base.config.methods[asked.method.name]
    numbers = concrete_hyperparameters(trainable, method, asked.hyperparameters)
    split = {"type": "hash"}
    loaded = job_recipe(
        trainable, method, numbers, name="job", dataset=".", split=split, seed=0, grader=asked.grader
    )
    try:
        validated(Recipe, loaded)
    except ConfigError as error:
        names = [
            name
            for name in asked.hyperparameters
            if method.hyperparameters[name].rpartition(".")[2] in str(error)
        ]
        param = ".".join(["method", method.name, "hyperparameters", *names[:1]])
        raise RefusedError(f"'{param}' makes no recipe: {error}", param=param, code="invalid_value") from None


def _inside(method: ServedMethod, tree: dict[str, Any]) -> dict[str, Any]:
    """What stands under the method's own name; anything beside it is unknown."""
    name = method.name
    for key, value in tree.items():
        if key not in ("type", name) and value is not None:
            raise RefusedError(
                f"Unknown parameter: 'method.{key:.80}'.", param=f"method.{key}", code="unknown_parameter"
            )
    inside = tree.get(name) or {}
    if not isinstance(inside, dict) or not isinstance(inside.get("hyperparameters") or {}, dict):
        raise RefusedError(
            f"method.{name} is an object with 'hyperparameters'.", param=f"method.{name}", code="invalid_value"
        )
    known = ("hyperparameters", "grader") if method.takes_grader else ("hyperparameters",)
    if unknown := [key for key in inside if key not in known]:
        param = f"method.{name}.{unknown[0]}"
        raise RefusedError(f"Unknown parameter: '{param:.120}'.", param=param, code="unknown_parameter")
    return inside


def _grader(method: ServedMethod, base: BaseModelFile, value: Any) -> dict[str, Any] | None:
    """The grader as it was sent, if it is one; None where the base model's file says what pays."""
    if not method.takes_grader:
        return None
    param = f"method.{method.name}.grader"
    if value is None:
        if asks_for_grader(base.config.methods[method.name].recipe):
            raise RefusedError(
                f"Missing required parameter: '{param}': what pays an answer.",
                param=param,
                code="missing_required_parameter",
            )
        return None
    try:
        check_sample_fields(_GRADER.validate_python(value), param)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join([param, *(str(part) for part in first["loc"][1:])])
        message = first["msg"].removeprefix("Value error, ")
        raise RefusedError(
            f"Invalid value of '{where}': {message}.", param=where, code="invalid_grader"
        ) from None
    except ConfigError as error:
        raise RefusedError(str(error), param=param, code="invalid_grader") from error
    return dict(value)


def _check_hyperparameter(method: ServedMethod, key: str, value: Any) -> None:
    param = f"method.{method.name}.hyperparameters.{key}"
    if key in method.left_to_us:
        if value not in ("auto", "default", None):
            raise RefusedError(
                f"'{param}' is not honoured here: leave it out, or say 'auto'.",
                param=param,
                code="invalid_value",
            )
        return
    if key not in method.hyperparameters:
        there = ", ".join(method.hyperparameters)
        raise RefusedError(
            f"Unknown parameter: '{param:.160}'; '{method.name}' has: {there}.",
            param=param,
            code="unknown_parameter",
        )
    if value == "auto":
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_whole = is_number and (isinstance(value, int) or value.is_integer())
    if not is_number or not 1e-9 <= value < 1e9 or (key in WHOLE_NUMBERS and not is_whole):
        kind = "whole number from 1" if key in WHOLE_NUMBERS else "number from 1e-9"
        raise RefusedError(
            f"Invalid value of '{param}': expected 'auto' or a {kind} to 1e9, not {value!r:.40}.",
            param=param,
            code="invalid_value",
        )
