"""The methods that there are. Adding one takes a folder beside this file, and one line of it.

    folder `dpo`:  config.py   its `MethodConfig`; imports no torch, and is read at once: recipes are checked,
                               planned with and judged where there is no torch
                   method.py   its `PredictingMethod`, the only other file that is asked for from outside

Nobody else names a method: whoever has a recipe asks `method_of`.
"""

from collections.abc import Mapping
from functools import reduce
from importlib import import_module
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

from assay.base.errors import ConfigError
from assay.training.trainer.method_config import MethodConfig

if TYPE_CHECKING:
    from assay.training.trainer.method import ExportableMethod, LoadableMethod, PredictingMethod


class Entry(NamedTuple):
    """Where a method is found."""

    folder: str
    """Its name, too: the `type` of its configuration."""
    config: str
    """Class in the folder's `config.py`."""
    method: str
    """Class in the folder's `method.py`, made from the configuration."""


METHODS = (
    Entry("classify", config="ClassifyConfig", method="ClassifyMethod"),
    Entry("sft", config="SftConfig", method="SftMethod"),
    Entry("reward", config="RewardConfig", method="RewardMethod"),
    Entry("dpo", config="DpoConfig", method="DpoMethod"),
    Entry("grpo", config="GrpoConfig", method="GrpoMethod"),
)  # fmt: skip


def method_of(config: MethodConfig) -> "PredictingMethod":
    """The method that a recipe chose."""
    (entry,) = (entry for entry in METHODS if entry.folder == config.type)
    method: PredictingMethod = getattr(_module(entry, "method"), entry.method)(config)
    return method


def exportable_method(config: MethodConfig) -> "ExportableMethod":
    """Likewise, if its model can leave; else a `ConfigError`."""
    from assay.training.trainer.method import ExportableMethod

    method = method_of(config)
    if not isinstance(method, ExportableMethod):
        raise ConfigError(
            f"a model of method '{config.type}' cannot leave yet: the method does not say how its weights are "
            "written for others."
        )
    return method


def loadable_method(config: MethodConfig) -> "LoadableMethod":
    """Likewise, if its model answers for rows of a file; else a `ConfigError`."""
    from assay.training.trainer.method import LoadableMethod

    method = method_of(config)
    if not isinstance(method, LoadableMethod):
        raise ConfigError(
            f"a model of method '{config.type}' has no answer for the rows of a file. Ask "
            "it in words with 'assay chat RUN', or write it for transformers with 'assay export RUN'."
        )
    return method


def import_all_methods() -> None:
    """Import what `method_of` would import when it is asked: for who must not wait then."""
    for entry in METHODS:
        _module(entry, "method")


def _module(entry: Entry, name: str) -> object:
    return import_module(f"assay.training.methods.{entry.folder}.{name}")


def _with_type(method: Any) -> Any:
    """Recipes from when there was one method need not say which; only that one had an encoder."""
    if isinstance(method, Mapping) and "type" not in method and "encoder" in method:
        return {"type": METHODS[0].folder, **method}
    return method


if TYPE_CHECKING:
    AnyMethodConfig = MethodConfig
else:
    AnyMethodConfig = Annotated[
        reduce(or_, (getattr(_module(entry, "config"), entry.config) for entry in METHODS)),
        Field(discriminator="type"),
        BeforeValidator(_with_type),
    ]
