"""Values that are written down and read again by later releases: records, and the configurations in them.

A value is stored as JSON with its class's `version`; where none is written it is 1. What is read from storage
is upgraded first, one version at a time, each class by its own functions, nested ones too:

    {"version": 1, ...}  --upgrades[0]-->  version 2's tree  --upgrades[1]-->  ...  -->  the class of today

Until release 1.0 every class is at version 1, and a change of its fields makes older files unreadable. From
release 1.0 on, a change (a field that is new, renamed, split, or has another meaning) appends an upgrade, which
raises the version; a released upgrade is never edited. A configuration's upgrades stand at its root (`Recipe`):
parts of it are given by people, who name no versions.

Values that a person or our own code gives are of today's version and pass through no upgrade.
"""

from collections.abc import Callable, Mapping
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
"""Takes the JSON tree of one version, gives that of the next. May change its argument."""

STORED: Mapping[str, bool] = {"stored": True}
"""The validation context in which trees are upgraded."""


class Versioned(BaseModel):
    """A value whose stored trees of every earlier version can be read."""

    upgrades: ClassVar[tuple[Upgrade, ...]] = ()
    """`upgrades[n - 1]` makes version n + 1 of version n."""

    version: ClassVar[int] = 1
    """The version of what is written today; follows from `upgrades`."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls.version = len(cls.upgrades) + 1

    @classmethod
    def from_stored(cls, tree: Mapping[str, Any]) -> Self:
        """Read what any version wrote; raises pydantic's `ValidationError` (see `stored_problem`)."""
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
            tree = upgrade(tree)
        return tree

    @model_serializer(mode="wrap")
    def _with_version(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        tree: dict[str, Any] = write(self)
        return tree if self.version == 1 else {"version": self.version, **tree}


def stored_problem(error: ValidationError, *, wrote: str = "") -> str:
    """Why a stored tree cannot be read, and what to do: the end of a sentence about it.

    `wrote` is the version of assay that wrote it, where that is known.
    """
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    writer = f"assay {wrote}" if wrote else "the assay that wrote it"
    place = f"key '{key}'" if key else "the whole"
    cure = f"this is assay {code_version()}: use {writer}, or a newer one"
    if first["type"] == "extra_forbidden":
        return f"key '{key}' is unknown here; {cure}, or remove the key if a person added it"
    if "reads up to version" in first["msg"]:
        return f"{place}: {first['msg'].removeprefix('Value error, ')}; {cure}"
    if first["type"] == "missing":
        return f"key '{key}' is missing; {cure}, or restore the file if it was changed"
    return f"{place}: {message_of(first)}; {cure}, or restore the file if it was changed"
