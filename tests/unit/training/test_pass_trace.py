"""The operators of passes without numbers, compared with what torch counts in the same passes with numbers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from assay.base.config import LoadedConfig, validated
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.data.loader.batch import MicroBatch
from assay.data.loader.loader import Loader
from assay.models import line_attention
from assay.models.traced import PassTrace, at_depth
from assay.training.methods.registry import method_of
from assay.training.pass_trace import LossPass, trace_pass
from assay.training.recipe import Recipe
from assay.training.trainer.lane_forward import LaneForward
from assay.training.trainer.method import Method
from language_rows import indexed
from method_runs import method_recipe

assert line_attention.LINE_ATTENTION  # registers its operators
CPU = torch.device("cpu")
LINE = {"layout": {"type": "line", "tokens": 96, "row_tokens": 24}}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "classify": ("classify", {}, {}),
    "classify, attention as products": ("classify", {}, {"attention_dropout": 0.1}),
    "sft": ("sft", {}, {}),
    "sft, packed": ("sft", {"layout": {"type": "packed", "sequence_tokens": 32}}, {}),
    "sft, lines": ("sft", LINE, {}),
    "sft, activations computed twice": ("sft", {}, {"checkpoint_activations": True}),
    "sft, gpt2": ("sft", {}, {"architecture": "gpt2", "num_kv_heads": None}),
    "dpo": ("dpo", {}, {}),
    "dpo, lines": ("dpo", LINE, {}),
    "reward": ("reward", {}, {}),
}


def labelled_dataset(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "input_ids": pa.array([rng.integers(1, 50, size).tolist() for size in rng.integers(4, 24, 96)]),
            "label": pa.array(rng.integers(0, 2, 96), pa.int8()),
            "language": ["en", "de", "fr"] * 32,
            "shard_id": [f"key-{row}" for row in range(96)],
        }
    )
    return indexed(table, folder)


def recipe_of(case: str, folder: Path) -> Recipe:
    name, loader, model = CASES[case]
    if name == "classify":
        encoder = {"type": "new", "vocab_size": 50, "hidden_size": 16, "num_layers": 2, "num_heads": 2, **model}
        tree = method_recipe("sft", folder)
        tree["data"]["dataset"] = str(labelled_dataset(folder / "tokens"))
        tree["method"] = {"type": "classify", "encoder": encoder, "categorical_columns": ["language"]}
    else:
        tree = method_recipe(name, folder, **model)
    tree["loader"] |= loader
    return validated(Recipe, LoadedConfig(tree, {}))


def case_of(case: str, folder: Path) -> tuple[Method, MicroBatch]:
    """The method of a recipe, and a micro-batch that its loader reads."""
    recipe = recipe_of(case, folder)
    view = split_view(Dataset.open(Path(recipe.data.dataset)), recipe.data.split, "train")
    loader = Loader(view, recipe.loader, tuple(recipe.method.columns))
    [share] = loader.shares(loader.cursor_at(0), [0], 1)
    return method_of(recipe.method), share.lanes[0].micro_batches[0]


def traced(method: Method, batch: MicroBatch, *, on_gpu: bool = False) -> PassTrace:
    return trace_pass(LossPass(method, batch, "float32", compute_copy=False), on_gpu=on_gpu)


def with_numbers(method: Method, batch: MicroBatch) -> tuple[list[Tensor], Callable[[], Tensor]]:
    """The trained weights of a model with numbers, and its forward pass."""
    method = method_of(method.config)  # the other one keeps a reference model without numbers
    forward = LaneForward(method, device=CPU, precision="float32", seed=0)
    model = method.build_model().train()
    return [weight for weight in model.parameters() if weight.requires_grad], lambda: forward.loss_of(model, batch).sum


def attention_flops(shape: Any, *others: Any, **_: Any) -> int:
    return sdpa_flop_count(shape, shape, shape)


def attention_backward_flops(gradient: Any, query: Any, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(query, query, query, query)


def line_flops(query: Tensor, key: Tensor, value: Tensor, borders: Tensor, *_: Any, **__: Any) -> int:
    shapes = [(1, query.shape[1], length, query.shape[2]) for length in borders.diff().tolist()]
    return sum(map(attention_flops, shapes))


def line_backward_flops(gradient: Tensor, query: Tensor, *saved: Any, **_: Any) -> int:
    shapes = [(1, query.shape[1], length, query.shape[2]) for length in saved[4].diff().tolist()]
    return sum(attention_backward_flops(shape, shape) for shape in shapes)


for function in (line_flops, line_backward_flops):
    function._get_raw = True  # type: ignore[attr-defined]  # torch then passes tensors: lengths are their values


def counted(method: Method, batch: MicroBatch) -> int:
    """FLOPs of a pass with numbers as torch counts them, with its formulas for attention also on a CPU."""
    weights, loss = with_numbers(method, batch)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    formulas = {
        flash: attention_flops,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward_flops,
        torch.ops.assay.line_attention: line_flops,
        torch.ops.assay.line_attention_backward: line_backward_flops,
    }
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        torch.autograd.grad(loss(), weights, allow_unused=True)
    return counter.get_total_flops()


@pytest.mark.parametrize("case", CASES)
def test_a_pass_has_the_flops_that_torch_counts_with_numbers(case: str, tmp_path: Path) -> None:
    method, batch = case_of(case, tmp_path)
    assert traced(method, batch).flops == counted(method, batch) > 0


class Allocations(TorchDispatchMode):
    """Counts the bytes of results that are still in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._results: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        before = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        found = func(*args, **(kwargs or {}))
        for result in tree_leaves(found):
            if isinstance(result, Tensor) and (storage := result.untyped_storage())._cdata not in before:
                self._results[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return found

    def alive(self) -> int:
        return sum(num_bytes for reference, num_bytes in self._results.values() if not reference.expired())


@pytest.mark.parametrize("case", ["classify", "sft", "sft, lines", "sft, activations computed twice", "dpo", "reward"])
def test_activations_are_the_memory_that_a_forward_pass_leaves_allocated(case: str, tmp_path: Path) -> None:
    method, batch = case_of(case, tmp_path)
    _, loss = with_numbers(method, batch)
    with Allocations() as allocations:
        result = loss()
    assert result.requires_grad
    assert traced(method, batch).saved_bytes == pytest.approx(allocations.alive(), rel=0.02)


def test_weights_are_counted_once_and_a_reference_is_frozen(tmp_path: Path) -> None:
    method, batch = case_of("dpo", tmp_path)
    trace = traced(method, batch)
    weights, _ = with_numbers(method, batch)
    assert trace.trained == trace.frozen == sum(weight.numel() for weight in weights)


def test_a_deep_model_is_known_from_one_and_two_of_its_layers(tmp_path: Path) -> None:
    method, batch = case_of("sft", tmp_path)
    depths = {
        depth: traced(method_of(method.config.model_copy(update={"model": _with_layers(method, depth)})), batch)
        for depth in (1, 2, 5)
    }
    found = at_depth(depths[1], depths[2], 5)
    assert (set(found.products), set(found.attentions)) == (set(depths[5].products), set(depths[5].attentions))
    assert found._replace(products=(), attentions=()) == depths[5]._replace(products=(), attentions=())


def _with_layers(method: Method, depth: int) -> Any:
    return method.config.model.model_copy(update={"num_layers": depth})  # type: ignore[attr-defined]


def test_on_a_gpu_the_head_of_sft_takes_three_products_of_fixed_size(tmp_path: Path) -> None:
    method, batch = case_of("sft, lines", tmp_path)
    heads = {
        on_gpu: [product for product in traced(method, batch, on_gpu=on_gpu).products if 40 in product[3:6]]
        for on_gpu in (False, True)
    }
    calls = {on_gpu: sum(product.calls for product in products) for on_gpu, products in heads.items()}
    assert calls == {False: 4, True: 3}


def test_rows_that_begin_at_odd_numbers_are_known(tmp_path: Path) -> None:
    recipe = recipe_of("sft", tmp_path)
    uneven = recipe.method.model_copy(update={"model": recipe.method.model.model_copy(update={"vocab_size": 57})})  # type: ignore[attr-defined]
    _, batch = case_of("sft", tmp_path / "again")
    products = traced(method_of(uneven), batch).products
    of_head = {product.row_multiple for product in products if 57 in (product.n, product.k)}
    assert of_head == {1}
    assert all(product.row_multiple % 8 == 0 for product in products if 57 not in product[3:6])
