"""Which key is offered to who wrote one that is none."""

from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field

from assay.base.closest_key import closest_key, written_key
from assay.base.config import FrozenConfig


class Linear(FrozenConfig):
    type: Literal["linear"] = "linear"
    slope: float = 1.0


class Steps(FrozenConfig):
    type: Literal["steps"]
    num_steps: int = 1


class Part(FrozenConfig):
    also_called: ClassVar = {"breadth": "width"}

    width: int = 1
    shape: Annotated[Linear | Steps, Field(discriminator="type")] = Linear()
    inner: "Part | None" = None


class Whole(FrozenConfig):
    part: Part = Part()
    others: dict[str, Part] = Field(default={})
    many: tuple[Steps, ...] = ()
    depth: int = 1


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        (("width",), "part.width"),
        (("breadth",), "part.width"),
        (("Breadth",), "part.width"),
        (("num-steps",), "part.shape.num_steps"),
        (("part", "shape", "linear", "slop"), "part.shape.slope"),
        (("part", "shape", "linear", "width"), "part.width"),
        (("others", "left", "breadth"), "others.left.width"),
        (("others", "left", "shape", "steps", "num_step"), "others.left.shape.num_steps"),
        (("many", 3, "num_stpes"), "many.3.num_steps"),
        (("part", "dpeth"), "depth"),
        (("part", "inner", "widht"), "part.inner.width"),
        (("colour",), None),
    ],
)
def test_the_nearest_key_that_is_called_so_is_meant(path: tuple[str | int, ...], meant: str | None) -> None:
    assert closest_key(Whole, path) == meant


def test_a_key_is_said_as_a_file_has_it() -> None:
    tree = {"others": {"type": "left", "shape": {"type": "steps", "num": 1}}, "many": [{}], "depth": "x"}
    assert written_key(tree, ("others", "left", "shape", "steps", "num")) == "others.shape.num"
    assert written_key(tree, ("others", "left", "size"), is_lacking=True) == "others.size"
    assert written_key(tree, ("many", 0, "num_steps"), is_lacking=True) == "many.0.num_steps"
    assert written_key(tree, ("depth", "literal['auto']")) == "depth"
    assert written_key(tree, ("many", 0, "left")) == "many.0"
