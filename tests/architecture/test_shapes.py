"""Shapes are written where arrays and tensors are taken or returned, and are really checked in the tests."""

import ast
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import TypeCheckError

import shapes
from import_graph import syntax

SRC = Path(__file__).parents[2] / "src" / "assay"
ROOMS = (
    "data/loader",
    "statistics",
    "training/audit.py",
    "training/checkpoint",
    "inference/local",
    "training/methods",
    "models",
    "distributed",
    "training/replay/bad_rows.py",
    "training/trainer",
)
"""All of whose signatures say their shapes."""

BARE = {"Tensor", "ndarray", "NDArray"}
EXCEPTIONS = {
    "distributed/lane_sum.py: _reduce_bucket": "DDP wants its hook to return Future[Tensor], no more",
    "distributed/lane_sum.py: reduce_bucket": "DDP wants its hook to return Future[Tensor], no more",
}
"""Functions whose arrays have no shape to write, and why."""


def bare_arrays(annotation: ast.expr) -> bool:
    """Whether an array stands in it without a shape: `Int[np.ndarray, "row"]` has one, `np.ndarray` has not."""
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Tuple):
        shape = annotation.slice.elts[1] if len(annotation.slice.elts) > 1 else None
        if isinstance(shape, ast.Constant) and isinstance(shape.value, str):
            return False
    name = getattr(annotation, "attr", getattr(annotation, "id", None))
    if name in BARE:
        return True
    return any(bare_arrays(part) for part in ast.iter_child_nodes(annotation) if isinstance(part, ast.expr))


def files_of(room: str) -> list[Path]:
    path = SRC / room
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def without_shapes(path: Path) -> list[str]:
    where, tree = path.relative_to(SRC), syntax(path)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            annotations = [*(argument.annotation for argument in arguments), node.returns]
            if any(annotation is not None and bare_arrays(annotation) for annotation in annotations):
                found.append(f"{where}: {node.name}")
    # A name for a bare array would hide it.
    found += [
        f"{where}: {ast.unparse(node.targets[0])}"
        for node in tree.body
        if isinstance(node, ast.Assign) and bare_arrays(node.value) and not isinstance(node.value, ast.Call)
    ]
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_every_array_in_a_signature_has_its_shape(room: str) -> None:
    found = [name for path in files_of(room) for name in without_shapes(path)]
    assert set(found) - EXCEPTIONS.keys() == set()


def test_an_exception_is_needed() -> None:
    found = {name for room in ROOMS for path in files_of(room) for name in without_shapes(path)}
    assert EXCEPTIONS.keys() - found == set()


def test_a_wrong_type_is_refused_where_it_is_handed_over() -> None:
    from assay.data.loader.receipts import receipt

    with pytest.raises(TypeCheckError, match="row_ids"):
        receipt(np.zeros(3, np.int64))


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    from assay.data.loader.config import PaddedLayout
    from assay.data.loader.layouts import WindowKeys, arrange

    def arranged(num_lengths: int) -> None:
        ids, lengths = np.arange(4, dtype=np.uint64), np.ones(num_lengths, np.int32)
        arrange(ids, lengths, np.ones(4, bool), PaddedLayout(), WindowKeys(0, 0, 0), step_rows=[4], max_tokens=None)

    arranged(4)
    with pytest.raises(TypeCheckError, match="lengths"):
        arranged(3)


def test_what_is_called_often_is_checked_at_first_and_now_and_then_and_anew_in_the_next_test() -> None:
    from assay.data.loader.receipts import receipt

    def is_refused() -> bool:
        try:
            receipt(np.zeros(3, np.int64))
        except TypeCheckError:
            return True
        except TypeError:  # NumPy's own, further down
            pass
        return False

    shapes.begin_test()
    assert all(is_refused() for _ in range(shapes.FIRST_CALLS))
    assert sum(is_refused() for _ in range(10 * shapes.LATER_CALLS)) == 10
    shapes.begin_test()
    assert is_refused()
