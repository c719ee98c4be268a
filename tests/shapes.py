"""Runs every shape that is written in a signature: jaxtyping's annotations, checked by beartype, in all tests.

`assay.base.shapes` takes them from jaxtyping where that has been imported, which this module does.

A finder stands before Python's own and, when a module of `ROOMS` has been imported, puts a checking function in
the place of each function and method that has a shape in its signature. So a shape that is wrong fails the test
that comes by, and the program itself, which knows nothing of this, pays nothing. A check may take longer than
what it checks: so a test checks the first calls of each, and a share of the others. Installed by
`tests/conftest.py`, before any test has imported such a module.
"""

import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import jaxtyping  # before any module of assay: see above
import numpy as np

ROOMS = ("assay.data.loader", "assay.statistics", "assay.training")
FIRST_CALLS = 4
"""So many calls of a function are checked in each test,"""
LATER_CALLS = 64
"""and then one of so many."""
_current = {"test": 0}


def install() -> None:
    """Check what is imported from now on; once a process is enough."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def begin_test() -> None:
    """From here on it is another test that calls."""
    _current["test"] += 1


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not any(fullname == room or fullname.startswith(f"{room}.") for room in ROOMS):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: types.ModuleType) -> None:
        super().exec_module(module)
        _check(module, module.__name__)


def _check(holder: Any, module_name: str) -> None:
    """Put checking functions in the place of those that the module itself defines."""
    for name, value in list(vars(holder).items()):
        if getattr(value, "__module__", module_name) != module_name:
            continue
        if inspect.isclass(value):
            if not getattr(value, "_is_protocol", False):
                _check(value, module_name)
        elif (checked := _checked(value)) is not None:
            setattr(holder, name, checked)


def _checked(value: Any) -> Any | None:
    """The checking twin of a function, method or property; None where no shape stands in its signature."""
    from beartype import BeartypeConf, beartype

    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    if not isinstance(function, types.FunctionType):
        return None
    shapes = [shape for annotation in function.__annotations__.values() for shape in _shapes(annotation)]
    if not shapes:
        return None
    for shape in shapes:
        if shape.array_type is np.ndarray:
            # What NumPy makes of an array whose last dimension is summed away is a number of its own.
            shape.array_type = np.ndarray | np.generic
    # A whole number will do where a float is asked for, as Python has it.
    checked = jaxtyping.jaxtyped(function, typechecker=beartype(conf=BeartypeConf(is_pep484_tower=True)))
    call = _now_and_then(function, checked)
    if isinstance(value, property):
        return property(call, value.fset, value.fdel, value.__doc__)
    return type(value)(call) if isinstance(value, classmethod | staticmethod) else call


def _now_and_then(function: Callable[..., Any], checked: Callable[..., Any]) -> Callable[..., Any]:
    test = calls = 0

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal test, calls
        if test != _current["test"]:
            test, calls = _current["test"], 0
        calls += 1
        is_checked = calls <= FIRST_CALLS or calls % LATER_CALLS == 0
        return (checked if is_checked else function)(*arguments, **named)

    return call


def _shapes(annotation: Any) -> Iterator[Any]:
    """The jaxtyping annotations in an annotation."""
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        yield annotation
    for part in get_args(annotation):
        yield from _shapes(part)
