"""Inspects each operator of a step as torch dispatches it, and stops at the first bad one.

A dispatch mode sees each operator below autograd, forward and backward, with its real inputs and outputs,
whatever library called it. An `Inspector` decides what is bad; this module knows *where*: the module of the
model (in backward: the module whose forward created the autograd node), the lane, the rows.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from assay.base.shapes import Int, UInt64
from assay.data.dataset.columns import sequences_of
from assay.data.loader.batch import MicroBatch
from assay.records.replay import OperatorFinding

MAX_NAMED_ROWS = 20


class Call(NamedTuple):
    """A call of an operator."""

    operator: OpOverload
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    def tensors(self) -> list[Tensor]:
        """Return all input tensors, those in lists too."""
        return [leaf for leaf in tree_leaves((self.arguments, self.keywords)) if isinstance(leaf, Tensor)]

    def named(self) -> dict[str, Any]:
        """Return the arguments by the schema's names, defaults included."""
        schema = self.operator._schema.arguments
        values = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
        positional = [argument.name for argument in schema if not argument.kwarg_only]
        values.update(zip(positional, self.arguments, strict=False))
        return values | self.keywords

    def written(self) -> list[Tensor]:
        """Return the inputs that the operator changes in place."""
        named = self.named()
        changed = [
            named.get(argument.name)
            for argument in self.operator._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        return [leaf for leaf in tree_leaves(changed) if isinstance(leaf, Tensor)]

    def outputs(self, result: Any) -> list[Tensor]:
        """Return the returned tensors and those changed in place."""
        returned = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        return returned + [tensor for tensor in self.written() if all(tensor is not one for one in returned)]


class BadOutput(NamedTuple):
    """A bad output of an operator."""

    output: Tensor
    wrong: Tensor
    """Mask of the bad numbers; the output's shape."""
    detail: str
    is_origin: bool = True
    """False: an input was bad already. Reported only if no origin is found."""


class Inspector(Protocol):
    """Decides whether an operator's output is bad."""

    problem: Any
    """Name of the problem, as in `OperatorFinding.problem`."""

    def before(self, call: Call) -> Callable[[Sequence[Tensor]], BadOutput | None]:
        """Called with the inputs, some of which the operator may change; returns a function that checks the outputs."""
        ...


class OperatorWatch(TorchDispatchMode):
    """Active within `with`; `finding` is the first bad operator, or None."""

    def __init__(
        self,
        model: nn.Module,
        inspector: Inspector,
        where: Callable[[], tuple[int | None, MicroBatch | None]],
        *,
        frozen_models: Mapping[str, nn.Module] = MappingProxyType({}),
        is_forward: Callable[[], bool] = lambda: False,
    ) -> None:
        """`where` returns the current lane and micro-batch; `frozen_models`: models besides the trained one;
        `is_forward`: whether a loss is being computed, between modules too."""
        super().__init__()  # type: ignore[no-untyped-call]
        models = {"": model, **frozen_models}
        self._named = {
            ".".join(filter(None, (of, name))) or type(module).__name__: module
            for of, owner in models.items()
            for name, module in owner.named_modules()
        }
        self._is_forward = is_forward
        self._inspector = inspector
        self._where = where
        self._modules: list[str] = []
        self._module_of_node: dict[int, str] = {}
        self._hooks: list[Any] = []
        self._names = {
            parameter.data_ptr(): ".".join(filter(None, (of, name)))
            for of, owner in models.items()
            for name, parameter in owner.named_parameters()
        }
        self.finding: OperatorFinding | None = None
        self.carried: OperatorFinding | None = None
        """The first operator with a bad input: weights that were bad before the step."""
        self.num_calls = 0
        self.operators: set[str] = set()

    def __enter__(self) -> "OperatorWatch":
        for name, module in self._named.items():
            self._hooks.append(module.register_forward_pre_hook(partial(self._entered, name)))
            self._hooks.append(module.register_forward_hook(self._left, always_call=True))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _entered(self, name: str, *_: object) -> None:
        self._modules.append(name)

    def _left(self, *_: object) -> None:
        self._modules.pop()

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator; inspect it unless something was found already."""
        del types
        if self.finding is not None:
            return func(*args, **(kwargs or {}))
        call = Call(func, args, kwargs or {})
        self.num_calls += 1
        self.operators.add(str(func))
        module, phase = self._locate(call)
        inputs = tuple(_description(tensor) for tensor in call.tensors())
        judge = self._inspector.before(call)
        result = func(*args, **(kwargs or {}))
        problem = judge(call.outputs(result))
        if problem is not None and problem.is_origin:
            self.finding = self._finding(call, problem, module, phase, inputs)
        elif problem is not None and self.carried is None:
            self.carried = self._finding(call, problem, module, phase, inputs)
        return result

    def _locate(self, call: Call) -> tuple[str, Any]:
        node: Any = torch._C._current_autograd_node()
        if node is not None:
            return self._module_of_node.get(node._sequence_nr(), ""), "backward"
        module = self._modules[-1] if self._modules else ""
        # Autograd numbers its nodes; this operator's node, if any, is the newest.
        self._module_of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, module)
        has_graph = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in call.tensors())
        return module, "forward" if module or has_graph or self._is_forward() else "update"

    def _finding(
        self, call: Call, problem: BadOutput, module: str, phase: Any, inputs: tuple[str, ...]
    ) -> OperatorFinding:
        lane, micro_batch = (None, None) if phase == "update" else self._where()
        parameters = [self._names[tensor.data_ptr()] for tensor in call.tensors() if tensor.data_ptr() in self._names]
        weights = f", among them the weights {', '.join(parameters)}" if parameters else ""
        return OperatorFinding(
            operator=str(call.operator),
            problem=self._inspector.problem,
            module=module,
            phase=phase,
            inputs=inputs,
            output=_description(problem.output),
            detail=problem.detail if problem.is_origin else problem.detail + weights,
            lane=lane,
            row_ids=_rows(problem.wrong, micro_batch, phase) if micro_batch is not None else (),
        )


class NotFinite:
    """Finds the origin of the first NaN or infinity: an operator that produces it from finite inputs.

    Intended infinities (a mask filled with -inf) and their consequences are not reported, nor is uninitialized memory.
    """

    problem = "not finite"

    def before(self, call: Call) -> Callable[[Sequence[Tensor]], BadOutput | None]:
        """Record whether an input is NaN or infinite."""
        inputs = [tensor for tensor in call.tensors() if tensor.is_floating_point()]
        had_nan = any(bool(tensor.isnan().any()) for tensor in inputs)
        had_inf = had_nan or any(bool(tensor.isinf().any()) for tensor in inputs)
        return partial(self._first_not_finite, call, had_nan, had_inf)

    def _first_not_finite(
        self, call: Call, had_nan: bool, had_inf: bool, outputs: Sequence[Tensor]
    ) -> BadOutput | None:
        """Return the first output with a NaN or an infinity; it is the origin unless an input has such numbers too."""
        if "empty" in call.operator._schema.name or _takes_infinity(call):
            return None
        for output in outputs:
            if not output.is_floating_point():
                continue
            nan, inf = output.isnan(), output.isinf()
            has_nan, has_inf = bool(nan.any()), bool(inf.any())
            is_origin = (has_nan and not had_nan) or (has_inf and not had_inf)
            if has_nan or is_origin:
                what = ", ".join(
                    f"{int(mask.sum())} {name}" for mask, name in ((nan, "NaN"), (inf, "infinite")) if mask.any()
                )
                source = "inputs have such numbers too"
                if not had_nan:
                    source = "no input is NaN, some are infinite, as a mask is" if had_inf else _largest(call)
                return BadOutput(output, nan | inf, f"{what} of {output.numel()} numbers; {source}", is_origin)
        return None


def _largest(call: Call) -> str:
    """Describe how close to overflow the inputs were; those changed in place are excluded."""
    written = {tensor.data_ptr() for tensor in call.written()}
    sizes = [
        float(tensor.abs().max())
        for tensor in call.tensors()
        if tensor.is_floating_point() and tensor.numel() and tensor.data_ptr() not in written
    ]
    return f"all inputs are finite{f', the largest {max(sizes):.3g}' if sizes else ''}"


def _takes_infinity(call: Call) -> bool:
    leaves = tree_leaves((call.arguments, call.keywords))
    return any(isinstance(leaf, float) and not -float("inf") < leaf < float("inf") for leaf in leaves)


def _rows(wrong: Tensor, micro_batch: MicroBatch, phase: str) -> tuple[int, ...]:
    """Return the rows of the bad numbers if the output is indexed by lines or tokens; else all of the micro-batch."""
    row_ids = micro_batch.row_ids
    if phase == "forward" and wrong.dim():
        row_of = _row_of_tokens(micro_batch)
        num_lines, width = row_of.shape
        for tokens in (width, width - 1):  # what predicts a token is one short
            if wrong.shape[0] == num_lines * tokens or wrong.shape[:2] == (num_lines, tokens):
                by_token = wrong.reshape(num_lines, tokens, -1).any(dim=2).cpu().numpy()
                return _named(row_ids[np.unique(row_of[:, :tokens][by_token])])
        if wrong.shape[0] == num_lines:
            by_line = wrong.reshape(num_lines, -1).any(dim=1).cpu().numpy()
            return _named(row_ids[np.unique(row_of[by_line])])
    return _named(row_ids)


def _row_of_tokens(batch: MicroBatch) -> Int[np.ndarray, "line token"]:
    """Return the row index of each token: packed, or a line each; for pairs, chosen lines before rejected ones."""
    if batch.packing is not None:
        return batch.row_of_tokens()
    columns = [batch.ragged[name] for name in sequences_of(batch.ragged)]
    if batch.line is not None:
        row_of = np.zeros((1, batch.line.tokens), np.int64)
        lengths = np.concatenate([column.lengths for column in columns])
        row_of[0, : lengths.sum()] = np.repeat(np.tile(np.arange(len(batch.row_ids)), len(columns)), lengths)
        return row_of
    lines = np.tile(np.arange(len(batch.row_ids)), len(columns))
    return np.repeat(lines[:, None], max(column.values.shape[1] for column in columns), axis=1)


def _named(row_ids: UInt64[np.ndarray, "row"]) -> tuple[int, ...]:
    return tuple(int(row) for row in row_ids[:MAX_NAMED_ROWS])


def _description(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
