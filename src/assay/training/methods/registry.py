"""The training methods. Adding one takes a folder beside this file, and one entry in `METHODS`.

    folder `dpo`:  config.py   its `MethodConfig`; imports no torch, because recipes are checked and planned without it
                   method.py   its `Method`, the only other file that is imported from outside

No other module names a method: `method_of` maps a recipe's configuration to it.
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
    from assay.training.trainer.method import ExportableMethod, LoadableMethod, Method


class Entry(NamedTuple):
    """The location of a method."""

    folder: str
    """Also the `type` of its configuration."""
    config: str
    """Class in the folder's `config.py`."""
    method: str
    """Class in the folder's `method.py`, built from the configuration."""


METHODS = (
    Entry("classify", config="ClassifyConfig", method="ClassifyMethod"),
    Entry("sft", config="SftConfig", method="SftMethod"),
    Entry("reward", config="RewardConfig", method="RewardMethod"),
    Entry("dpo", config="DpoConfig", method="DpoMethod"),
    Entry("grpo", config="GrpoConfig", method="GrpoMethod"),
)  # fmt: skip


def method_of(config: MethodConfig) -> "Method":
    """Return the method of a recipe."""
    (entry,) = (entry for entry in METHODS if entry.folder == config.type)
    method: Method = getattr(_module(entry, "method"), entry.method)(config)
    return method


def exportable_method(config: MethodConfig) -> "ExportableMethod":
    """Return the method if its model can be exported; else raise `ConfigError`."""
    from assay.training.trainer.method import ExportableMethod

    method = method_of(config)
    if not isinstance(method, ExportableMethod):
        raise ConfigError(f"a model of method '{config.type}' cannot be exported: the method does not support it.")
    return method


def loadable_method(config: MethodConfig) -> "LoadableMethod":
    """Return the method if its model predicts on rows of a file; else raise `ConfigError`."""
    from assay.training.trainer.method import LoadableMethod

    method = method_of(config)
    if not isinstance(method, LoadableMethod):
        raise ConfigError(
            f"a model of method '{config.type}' makes no predictions for rows of a file. Chat "
            "with it: 'assay eval chat RUN', or export it: 'assay runs export RUN'."
        )
    return method


def import_all_methods() -> None:
    """Import all methods now, for processes that must not wait later."""
    for entry in METHODS:
        _module(entry, "method")


def _module(entry: Entry, name: str) -> object:
    return import_module(f"assay.training.methods.{entry.folder}.{name}")


def _with_type(method: Any) -> Any:
    """Fill in the type `classify` if a configuration has an encoder and no type."""
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
