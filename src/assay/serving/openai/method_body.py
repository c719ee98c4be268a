"""Validates a job's `method`: type, hyperparameters and grader."""

from typing import Any, NamedTuple

from assay.base.config import validated
from assay.base.errors import ConfigError
from assay.serving.api_error import ApiError
from assay.serving.base_models import BaseModelFile, concrete_hyperparameters, job_recipe, requires_grader
from assay.serving.graders import parse_grader
from assay.serving.methods import DEFAULT_METHOD, SERVED_METHODS, WHOLE_NUMBERS, ServedMethod
from assay.serving.openai.bodies import JobBody
from assay.training.recipe import Recipe


class RequestedMethod(NamedTuple):
    """The method of a create request."""

    method: ServedMethod
    hyperparameters: dict[str, Any]
    """As requested, including `auto`."""
    grader: dict[str, Any] | None


def requested_method(base: BaseModelFile, body: JobBody) -> RequestedMethod:
    """Return the validated method. Raises `ApiError` if the base model or the method does not support it."""
    served = list(base.config.methods)
    name = DEFAULT_METHOD if DEFAULT_METHOD in served else served[0]
    if body.method is not None:
        name = body.method.type
    if name not in served:
        raise ApiError(
            f"Model '{base.name}' cannot be trained by {name!r:.60}. Its methods are: {', '.join(served)}.",
            param="method.type",
            code="method_not_served",
        )
    method = SERVED_METHODS[name]
    inside = {} if body.method is None else _inside(method, body.method.model_dump())
    requested: dict[str, Any] = inside.get("hyperparameters") or {}
    if body.hyperparameters is not None:
        if requested:
            raise ApiError(
                "hyperparameters are given twice. Remove the old form and keep those in 'method'.",
                param="hyperparameters",
                code="invalid_value",
            )
        requested = body.hyperparameters
    for key, value in requested.items():
        _check_hyperparameter(method, key, value)
    used = {key: value for key, value in requested.items() if key not in method.left_to_us}
    return RequestedMethod(method, used, _grader(method, base, inside.get("grader")))


def check_recipe(base: BaseModelFile, requested: RequestedMethod) -> None:
    """Raise `ApiError` if the hyperparameters give an invalid recipe with this base model."""
    method, trainable = requested.method, base.config.methods[requested.method.name]
    numbers = concrete_hyperparameters(trainable, method, requested.hyperparameters)
    split = {"type": "hash"}
    loaded = job_recipe(
        trainable, method, numbers, name="job", dataset=".", split=split, seed=0, grader=requested.grader
    )
    try:
        validated(Recipe, loaded)
    except ConfigError as error:
        names = [
            name for name in requested.hyperparameters if method.hyperparameters[name].rpartition(".")[2] in str(error)
        ]
        param = ".".join(["method", method.name, "hyperparameters", *names[:1]])
        raise ApiError(f"'{param}' gives an invalid recipe: {error}", param=param, code="invalid_value") from None


def _inside(method: ServedMethod, tree: dict[str, Any]) -> dict[str, Any]:
    """Return the object under the method's own name. Raises `ApiError` for other keys."""
    name = method.name
    for key, value in tree.items():
        if key not in ("type", name) and value is not None:
            raise ApiError(f"Unknown parameter: 'method.{key:.80}'.", param=f"method.{key}", code="unknown_parameter")
    inside = tree.get(name) or {}
    if not isinstance(inside, dict) or not isinstance(inside.get("hyperparameters") or {}, dict):
        raise ApiError(
            f"method.{name} must be an object with 'hyperparameters'.", param=f"method.{name}", code="invalid_value"
        )
    known = ("hyperparameters", "grader") if method.accepts_grader else ("hyperparameters",)
    if unknown := [key for key in inside if key not in known]:
        param = f"method.{name}.{unknown[0]}"
        raise ApiError(f"Unknown parameter: '{param:.120}'.", param=param, code="unknown_parameter")
    return inside


def _grader(method: ServedMethod, base: BaseModelFile, value: Any) -> dict[str, Any] | None:
    """Return the validated grader as sent; None if the base model's recipe has rewards."""
    if not method.accepts_grader:
        return None
    param = f"method.{method.name}.grader"
    if value is None:
        if requires_grader(base.config.methods[method.name].recipe):
            raise ApiError(
                f"Missing required parameter: '{param}', the grader of completions.",
                param=param,
                code="missing_required_parameter",
            )
        return None
    parse_grader(value, param)
    return dict(value)


def _check_hyperparameter(method: ServedMethod, key: str, value: Any) -> None:
    param = f"method.{method.name}.hyperparameters.{key}"
    if key in method.left_to_us:
        if value not in ("auto", "default", None):
            raise ApiError(
                f"'{param}' is not supported. Remove it or set it to 'auto'.", param=param, code="invalid_value"
            )
        return
    if key not in method.hyperparameters:
        served = ", ".join(method.hyperparameters)
        raise ApiError(
            f"Unknown parameter: '{param:.160}'; '{method.name}' has: {served}.", param=param, code="unknown_parameter"
        )
    if value == "auto":
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_whole = is_number and (isinstance(value, int) or value.is_integer())
    if not is_number or not 1e-9 <= value < 1e9 or (key in WHOLE_NUMBERS and not is_whole):
        kind = "whole number from 1" if key in WHOLE_NUMBERS else "number from 1e-9"
        raise ApiError(
            f"Invalid value of '{param}': expected 'auto' or a {kind} to 1e9, not {value!r:.40}.",
            param=param,
            code="invalid_value",
        )
