"""Which operators a pass of a method computes, with their shapes: the real model and loss on a real micro-batch.

    model, frozen models     without numbers: operators on them have shapes and compute nothing
    rows, masks, borders     with numbers, because shapes follow from them (how many tokens are scored)

So a model of any size is traced in seconds on a CPU. Operators are those of a CPU, or of a GPU with Triton for the head
of a language model; fused attention is one operator on both. A pass is traced as written, not as compiled.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.module_tracker import ModuleTracker

from assay.base.shapes import Shaped
from assay.data.loader.batch import MicroBatch
from assay.models.compute_copy import as_bfloat16
from assay.models.described import has_numbers, on_device
from assay.models.kernels.triton_use import assumed_triton
from assay.models.traced import Direction, PassTrace, Product, TracedAttention
from assay.training.trainer.config import Precision
from assay.training.trainer.lane_forward import LaneForward
from assay.training.trainer.method import LossMethod

CPU = torch.device("cpu")
_HEAD = "head"
_LAYER = re.compile(r"\.\d+(?=\.|$)")
_MATRICES = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2)}
"""Operator -> positions of its two matrices."""


class LossPass(NamedTuple):
    """A forward and a backward pass of a method's loss over a micro-batch."""

    method: LossMethod
    micro_batch: MicroBatch
    precision: Precision
    compute_copy: bool

    def build(self, device: torch.device) -> tuple[nn.Module, LaneForward]:
        """Build the model and the forward pass."""
        model = on_device(self.method.build_model(), device).train()
        forward = LaneForward(
            self.method, device=device, precision=self.precision, seed=0, compute_copy=self.compute_copy
        )
        if self.compute_copy:
            as_bfloat16(model)
        return model, forward


def trace_pass(loss_pass: LossPass, *, on_gpu: bool) -> PassTrace:
    """Return the operators of a pass."""
    method, micro_batch = loss_pass.method, loss_pass.micro_batch
    with FakeTensorMode() as numberless:
        model, forward = loss_pass.build(CPU)
        num_trained, num_frozen = _sizes([model, *forward.frozen_models.values()])
    operators = _Operators(numberless)
    with assumed_triton(on_gpu), operators, operators.modules:
        with _saved_bytes([model, *forward.frozen_models.values()]) as saved_bytes:
            loss = forward.loss_of(model, micro_batch)
        held = saved_bytes()
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        torch.autograd.grad(loss.sum, weights, allow_unused=True)
    sides = method.tensors(micro_batch, CPU)["input_ids"]
    return PassTrace(
        products=tuple(product._replace(calls=calls) for product, calls in operators.products.items()),
        attentions=tuple(attention._replace(calls=calls) for attention, calls in operators.attentions.items()),
        other_bytes=operators.other_bytes,
        num_kernels=operators.num_kernels,
        saved_bytes=held,
        trained=num_trained,
        frozen=num_frozen,
        num_rows=len(micro_batch.row_ids),
        num_tokens=sides.numel(),
    )


def _sizes(models: Sequence[nn.Module]) -> tuple[int, int]:
    """Return the trained and the frozen numbers of models; shared weights count once."""
    weights = {id(weight): weight for model in models for weight in model.parameters()}.values()
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    return trained, sum(weight.numel() for weight in weights) - trained


@contextmanager
def _saved_bytes(models: Sequence[nn.Module]) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the bytes of all tensors saved for the backward pass, without the models' own."""
    weights = {_memory(tensor) for model in models for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if _memory(tensor) not in weights:
            saved[_memory(tensor)] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield lambda: sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def _memory(tensor: Shaped[Tensor, "..."]) -> int:
    return int(tensor.untyped_storage()._cdata)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the operators that compute something."""

    def __init__(self, numberless: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._numberless = numberless
        self.modules = ModuleTracker()
        self.products: Counter[Product] = Counter()
        self.attentions: Counter[TracedAttention] = Counter()
        self.other_bytes = self.num_kernels = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if all(map(has_numbers, tensors)):
            return func(*args, **(kwargs or {}))
        arguments = (args, kwargs or {})
        args, kwargs = tree_map_only(Tensor, self._without_numbers, arguments)
        found = func(*args, **kwargs)
        self._collect(func, arguments[0], arguments[1], found)
        return found

    def _without_numbers(self, tensor: Shaped[Tensor, "..."]) -> Tensor:
        return self._numberless.from_tensor(tensor) if has_numbers(tensor) else tensor

    def _collect(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], found: Any) -> None:
        name = func._schema.name
        if name in _MATRICES:
            left, right = (args[position] for position in _MATRICES[name])
            self.products[self._product(left, right)] += 1
        elif "attention" in name:
            self.attentions[self._attention(func, args, kwargs)] += 1
        elif _computes(func):
            tensors = [leaf for leaf in tree_leaves((args, kwargs, found)) if isinstance(leaf, Tensor)]
            self.other_bytes += sum(tensor.numel() * tensor.itemsize for tensor in tensors)
        else:
            return
        self.num_kernels += 1

    def _product(self, left: Tensor, right: Tensor) -> Product:
        (m, k), n = left.shape[-2:], right.shape[-1]
        rows = [n, *(max(tensor.stride()[-2:]) for tensor in (left, right) if min(tensor.shape[-2:]) > 1)]
        return Product(
            **self._origin(), batch=left.shape[0] if left.dim() > 2 else 1, m=m, n=n, k=k, item_bytes=left.itemsize,
            row_multiple=math.gcd(*rows),
        )  # fmt: skip

    def _attention(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TracedAttention:
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | dict(kwargs)
        query, key = named["query"], named["key"]
        lengths = [query.shape[2]] * query.shape[0] if query.dim() > 3 else named["borders"].diff().tolist()
        # Activations that are computed twice have a forward pass within the backward pass.
        direction: Direction = "backward" if "backward" in func._schema.name else "forward"
        return TracedAttention(
            name=self._origin()["name"],
            direction=direction,
            heads=query.shape[1],
            kv_heads=key.shape[1],
            width=query.shape[-1],
            lengths=tuple(filter(None, lengths)),
            is_causal=bool(named.get("is_causal", True)),
            item_bytes=query.itemsize,
        )

    def _origin(self) -> dict[str, Any]:
        if self.modules.is_bw:
            return {"name": "", "direction": "backward"}
        deepest = max(self.modules.parents, key=len)
        return {"name": _LAYER.sub(".*", deepest.partition(".")[2]) or _HEAD, "direction": "forward"}


def _computes(func: Any) -> bool:
    """Return whether an operator is a kernel: no view, and no memory without contents."""
    is_view = any(result.alias_info and not result.alias_info.is_write for result in func._schema.returns)
    name = func._schema.name
    return name.startswith("aten::") and not is_view and not any(word in name for word in ("view", "empty", "detach"))
