"""Fails on operators by which the host would wait for a GPU, or by which a captured graph would be wrong.

    with NoHostWaits():
        loss = method.loss(model, tensors, {})
        loss.sum.backward()

Everything runs on the CPU: it is the operators that are looked at, in the deterministic mode that runs have on a GPU.
"""

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = {
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "equal",
    "nonzero",
    "argwhere",
    "masked_select",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "bincount",
    "histc",
}
"""Operators that read a value of the device, or whose result has a size that depends on values."""
SORTED_IN_ORDER = {
    "index_put",
    "_index_put_impl",
    "index_add",
    "index_copy",
    "index_reduce",
    "put",
    "scatter",
    "scatter_add",
    "scatter_reduce",
}
"""Operators that the deterministic mode turns into a sort of the indices with several waits (see `distinct_writes`)."""
READ_BY_HOST: dict[Callable[..., Any], str] = {
    Tensor.tolist: "Tensor.tolist",
    Tensor.numpy: "Tensor.numpy",
    Tensor.cpu: "Tensor.cpu",
    torch.tensor: "torch.tensor, a copy from memory that is not pinned,",
    torch.as_tensor: "torch.as_tensor of a number, a copy from memory that is not pinned,",
}
"""Functions that reach no operator on a CPU."""
SOURCE = Path(__file__).parents[1] / "src" / "assay"


class HostWaitsError(AssertionError):
    """Code inside `NoHostWaits` would wait for the GPU."""


class NoHostWaits:
    """Raises `HostWaitsError` at the operator, naming the line of our code; the deterministic mode is on."""

    def __init__(self) -> None:
        self._operators, self._functions = _Operators(), _Functions()  # type: ignore[no-untyped-call]
        self._was_deterministic = False

    def __enter__(self) -> Self:
        self._was_deterministic = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
        self._functions.__enter__()  # type: ignore[no-untyped-call]
        self._operators.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._operators.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._functions.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        torch.use_deterministic_algorithms(self._was_deterministic)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        if name in WAITING or (
            func is torch.ops.aten.repeat_interleave.Tensor and not (kwargs or {}).get("output_size")
        ):
            _fail(f"{name} makes the host wait for the device")
        if name in ("index", "index_put") and _has_mask(args[1]):
            _fail(f"{name} with a mask makes the host wait for the device (use torch.where or masked_fill)")
        if name in SORTED_IN_ORDER and torch.are_deterministic_algorithms_enabled():
            _fail(f"{name} sorts and waits in the deterministic mode (use distinct_writes if its indices are distinct)")
        return func(*args, **(kwargs or {}))


class _Functions(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        is_copy = func is torch.as_tensor and isinstance(args[0], Tensor)
        if func in READ_BY_HOST and not is_copy:
            _fail(f"{READ_BY_HOST[func]} makes the host wait for the device")
        return func(*args, **(kwargs or {}))


def _has_mask(indices: Sequence[Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _fail(what: str) -> None:
    frames = [frame for frame in traceback.extract_stack(sys._getframe(2)) if "/torch/" not in frame.filename]
    frames = [frame for frame in frames if Path(frame.filename) != Path(__file__)]
    ours = [frame for frame in frames if SOURCE in Path(frame.filename).parents] or frames[-1:]
    where = f"{ours[-1].filename}:{ours[-1].lineno}: {ours[-1].line}"
    inside = "" if frames[-1] is ours[-1] else f", inside {frames[-1].filename}:{frames[-1].lineno}"
    raise HostWaitsError(f"{what}: {where}{inside}")
