"""Stored values that later releases must read: records and the configurations in them.

A value is stored as JSON with the `version` of its class; without one it is version 1. A stored tree is upgraded
one version at a time before it is validated, nested values too:

    {"version": 1, ...}  --upgrades[0]-->  version 2's tree  --upgrades[1]-->  ...  -->  the class of today

Until release 1.0 every class is at version 1, and a change of its fields makes older files unreadable. From
release 1.0 on, a change (a field that is new, renamed, split, or has another meaning) appends an upgrade, which
raises the version; a released upgrade is never edited. The upgrades of a configuration belong to its
root (`Recipe`): users write parts of it, without versions.

Values from users or from our own code have the current version and are not upgraded.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, ClassVar, Self

from pydantic import (
    BaseModel,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from assay.base.code_version import code_version
from assay.base.value_text import message_of

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
"""Turns the JSON tree of one version into that of the next; may modify its argument."""

STORED: Mapping[str, bool] = {"stored": True}
"""The validation context that enables upgrades."""


class Versioned(BaseModel):
    """A value whose stored trees of every released version can be read."""

    upgrades: ClassVar[tuple[Upgrade, ...]] = ()
    """`upgrades[n - 1]` turns version n into version n + 1."""

    version: ClassVar[int] = 1
    """The version that is written; derived from `upgrades`."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls.version = len(cls.upgrades) + 1

    @classmethod
    def from_stored(cls, tree: Mapping[str, Any]) -> Self:
        """Read a stored tree of any known version; raises pydantic's `ValidationError` (see `stored_problem`)."""
        return cls.model_validate(dict(tree), context=STORED)

    @model_validator(mode="before")
    @classmethod
    def _of_today(cls, tree: Any, info: ValidationInfo) -> Any:
        if not isinstance(tree, Mapping) or not (info.context == STORED or "version" in tree):
            return tree
        tree = dict(tree)
        version = tree.pop("version", 1)
        if version not in range(1, cls.version + 1):
            raise ValueError(f"it has version {version!r}, and this assay reads up to version {cls.version}")
        for upgrade in cls.upgrades[version - 1 :]:
            tree = upgrade(deepcopy(tree))  # readers share what a record holds
        return tree

    @model_serializer(mode="wrap")
    def _with_version(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        tree: dict[str, Any] = write(self)
        return tree if self.version == 1 else {"version": self.version, **tree}


def stored_problem(error: ValidationError, *, wrote: str = "") -> str:
    """Return why a stored tree cannot be read and how to fix it, as the end of a sentence.

    `wrote` is the version of assay that wrote the tree, if known.
    """
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    writer = f"assay {wrote}" if wrote else "the assay that wrote it"
    subject = f"key '{key}'" if key else "the whole"
    hint = f"this is assay {code_version()}: use {writer}, or a newer one"
    if first["type"] == "extra_forbidden":
        return f"key '{key}' is unknown here; {hint}, or remove the key if a person added it"
    if "reads up to version" in first["msg"]:
        return f"{subject}: {first['msg'].removeprefix('Value error, ')}; {hint}"
    if first["type"] == "missing":
        return f"key '{key}' is missing; {hint}, or restore the file if it was changed"
    return f"{subject}: {message_of(first)}; {hint}, or restore the file if it was changed"
