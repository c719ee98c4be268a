"""Both methods that learn from pairs, held against a version that anybody can read, and against themselves.

The readable one is in 64 bits and takes a completion at a time. Against themselves: padding, the order of pairs
and how they are cut into micro-batches move neither loss nor gradient.
"""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch import nn
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.measured import Measured, apart, measured
from agreement.micro_batches import micro_batch
from agreement.tiny_models import VOCABULARY, save_tiny
from assay.data.loader.batch import MicroBatch
from assay.training.methods.registry import AnyMethodConfig, method_of

CPU = torch.device("cpu")
Row = dict[str, Any]

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "reward": {"type": "reward", "centring": 0.1},
    "sigmoid": {"type": "dpo", "loss": {"type": "sigmoid", "beta": 0.3, "label_smoothing": 0.1}},
    "sigmoid_norm": {"type": "dpo", "loss": {"type": "sigmoid_norm", "beta": 2.0}, "sft_weight": 0.3},
    "robust": {"type": "dpo", "loss": {"type": "robust", "beta": 0.3, "label_smoothing": 0.2}},
    "ipo": {"type": "dpo", "loss": {"type": "ipo", "beta": 0.2}},
}
any_configuration = pytest.mark.parametrize("name", CONFIGURATIONS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and a reference."""
    folder = tmp_path_factory.mktemp("models")
    return tuple(save_tiny(LlamaForCausalLM, folder / str(seed), seed=seed) for seed in (1, 2))  # type: ignore[return-value]


@cache
def built_once(name: str, folders: tuple[Path, Path]) -> tuple[Any, nn.Module, Any]:
    """The same, for who changes nothing of it."""
    return result(name, folders)


def result(name: str, folders: tuple[Path, Path], **keys: Any) -> tuple[Any, nn.Module, Any]:
    """The method, its model and its helpers."""
    policy, reference = map(str, folders)
    tree = {**CONFIGURATIONS[name], "model": {"type": "pretrained", "path": policy}, **keys}
    if tree["type"] == "dpo":
        tree.setdefault("reference", {"type": "frozen", "path": reference})
    method = method_of(TypeAdapter(AnyMethodConfig).validate_python(tree))
    torch.manual_seed(0)
    model = method.build_model().eval()
    return (
        method,
        model,
        {key: build_frozen_model.eval() for key, build_frozen_model in method.build_frozen_models().items()},
    )


def found(name: str, folders: tuple[Path, Path], batches: Sequence[MicroBatch]) -> Measured:
    """The mean loss over all of the batches, as a step would have it."""
    method, model, frozen_models = built_once(name, folders)
    total = sum(method.loss(model, method.tensors(batch, CPU), frozen_models).sum for batch in batches)
    return measured(model, total / sum(map(method.weight, batches)))


tokens = st.integers(0, VOCABULARY - 1)
completions = st.lists(tokens, min_size=1, max_size=9)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    prompt = draw(st.lists(tokens, min_size=1, max_size=5))
    chosen, rejected = draw(st.lists(completions, min_size=2, max_size=2, unique_by=tuple))
    return {
        "input_ids": prompt + chosen,
        "rejected_ids": prompt + rejected,
        "prompt_tokens": len(prompt),
        "margin": draw(st.floats(-1, 2, width=32)),
    }


@any_configuration
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_neither_padding_nor_order_nor_micro_batches_move_loss_and_gradient(
    name: str, folders: tuple[Path, Path], data: st.DataObject
) -> None:
    pairs = data.draw(st.lists(rows(), min_size=1, max_size=6))
    shuffled = data.draw(st.permutations(pairs))
    cut = data.draw(st.integers(0, len(pairs)))
    batches = [
        micro_batch(part, more_padding=data.draw(st.integers(0, 7)))
        for part in (shuffled[:cut], shuffled[cut:])
        if part
    ]
    whole = found(name, folders, [micro_batch(pairs)])
    difference = apart(found(name, folders, batches), whole)
    assert difference.loss < 1e-5
    # What is left where the chosen and the rejected sequence all but cancel has the rounding of what they had.
    assert difference.gradient * whole.norm < 1e-5 * max(1.0, whole.norm)


PAIRS = [
    {"input_ids": [5, 9, 4, 7, 8, 11], "rejected_ids": [5, 9, 12], "prompt_tokens": 2, "margin": 0.5},
    {"input_ids": [3, 10, 11], "rejected_ids": [3, 20, 21, 22, 23], "prompt_tokens": 1, "margin": 0.0},
    {"input_ids": [17, 18, 19, 6], "rejected_ids": [17, 18, 19, 9, 9], "prompt_tokens": 3, "margin": 2.0},
]


def likelihood(model: Any, sequence: list[int], prompt: int) -> torch.Tensor:
    """Log-probability of what follows the prompt, token by token, in 64 bits."""
    logits = model(input_ids=torch.tensor([sequence])).logits[0].double()
    return sum(logits[index - 1].log_softmax(-1)[sequence[index]] for index in range(prompt, len(sequence)))  # type: ignore[return-value]


def readable_dpo(name: str, model: Any, reference: Any) -> torch.Tensor:
    keys = CONFIGURATIONS[name]
    beta, total = keys["loss"]["beta"], torch.zeros((), dtype=torch.float64)
    for row in PAIRS:
        ratios = []
        for side in ("input_ids", "rejected_ids"):
            own = likelihood(model, row[side], row["prompt_tokens"])
            ratio = own - likelihood(reference, row[side], row["prompt_tokens"]).detach()
            length = len(row[side]) - row["prompt_tokens"]
            ratios.append(ratio / length if name in ("ipo", "sigmoid_norm") else ratio)
            if side == "input_ids":
                total = total - keys.get("sft_weight", 0.0) * own / length
        d = ratios[0] - ratios[1]
        e = keys["loss"].get("label_smoothing", 0.0)
        right, wrong = -torch.log(torch.sigmoid(beta * d)), -torch.log(torch.sigmoid(-beta * d))
        total = (
            total
            + {
                "sigmoid": (1 - e) * right + e * wrong,
                "sigmoid_norm": right,
                "robust": ((1 - e) * right - e * wrong) / (1 - 2 * e),
                "ipo": (d - 1 / (2 * beta)) ** 2,
            }[name]
        )
    return total / len(PAIRS)


@pytest.mark.parametrize("name", ["sigmoid", "sigmoid_norm", "robust", "ipo"])
def test_dpo_is_what_a_readable_version_in_64_bits_computes(name: str, folders: tuple[Path, Path]) -> None:
    model, reference = (LlamaForCausalLM.from_pretrained(folder).double().eval() for folder in folders)
    expected = measured(model, readable_dpo(name, model, reference))
    method, ours, frozen_models = result(name, folders)
    batch = micro_batch(PAIRS)
    own = measured(ours, method.loss(ours, method.tensors(batch, CPU), frozen_models).sum / len(PAIRS), network="")
    assert apart(own, expected).agree


def test_a_reward_model_is_what_a_readable_version_in_64_bits_computes(folders: tuple[Path, Path]) -> None:
    method, ours, frozen_models = result("reward", folders)
    batch = micro_batch(PAIRS)
    own = measured(ours, method.loss(ours, method.tensors(batch, CPU), frozen_models).sum / len(PAIRS))
    wide = method.build_model().double().eval()
    wide.load_state_dict({key: value.double() for key, value in ours.state_dict().items()})
    total = torch.zeros((), dtype=torch.float64)
    for row in PAIRS:
        chosen, rejected = (
            wide.decoder(input_ids=torch.tensor([row[side]])).last_hidden_state[0, -1] @ wide.head.weight[0]
            for side in ("input_ids", "rejected_ids")
        )
        total = total - torch.log(torch.sigmoid(chosen - rejected - row["margin"]))
        total = total + 0.1 * (chosen + rejected) ** 2
    assert apart(own, measured(wide, total / len(PAIRS))).agree


def test_a_reward_is_read_at_the_last_token_whatever_its_number(folders: tuple[Path, Path]) -> None:
    method, model, _ = result("reward", folders)
    ends = [{**PAIRS[0], "input_ids": [5, 9, 4, 0]}, {**PAIRS[0], "input_ids": [5, 9, 4]}]
    alone = [method.predictions(model, method.tensors(micro_batch([row]), CPU))["chosen_reward"] for row in ends]
    assert not torch.allclose(*alone)
    together = method.predictions(model, method.tensors(micro_batch(ends), CPU))["chosen_reward"]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-6, atol=1e-7)


def test_metrics_are_sums_of_what_predictions_say_of_each_pair(folders: tuple[Path, Path]) -> None:
    for name in CONFIGURATIONS:
        method, model, frozen_models = result(name, folders)
        tensors = method.tensors(micro_batch(PAIRS), CPU)
        with torch.no_grad():
            metrics, rows = (
                method.loss(model, tensors, frozen_models).metrics,
                method.predictions(model, tensors),
            )
        assert set(metrics) == set(method.metrics)
        for metric in set(metrics) & set(rows):
            mean = float(metrics[metric].sum) / float(metrics[metric].weight)
            assert mean == pytest.approx(float(rows[metric].mean()), rel=1e-5)
        expected = {metric.name for metric in method.config.predictions.metrics}
        assert expected == set(rows), "what no score is, the evaluation is cut by: rewards, by themselves"


def test_a_reference_from_columns_is_the_reference_that_was_asked(folders: tuple[Path, Path]) -> None:
    reference = LlamaForCausalLM.from_pretrained(folders[1]).eval().requires_grad_(False)
    message = [
        {
            **row,
            "ref_chosen_logps": float(likelihood(reference, row["input_ids"], row["prompt_tokens"])),
            "ref_rejected_logps": float(likelihood(reference, row["rejected_ids"], row["prompt_tokens"])),
        }
        for row in PAIRS
    ]
    method, model, frozen_models = result("sigmoid", folders, reference={"type": "columns"})
    assert frozen_models == {}
    by_columns = method.loss(model, method.tensors(micro_batch(message), CPU), frozen_models)
    requested, model, frozen_models = result("sigmoid", folders)
    by_asking = requested.loss(model, requested.tensors(micro_batch(PAIRS), CPU), frozen_models)
    assert by_columns.sum.item() == pytest.approx(by_asking.sum.item(), rel=1e-6)


def test_a_model_that_is_its_own_reference_loses_log_2_and_has_no_rewards(folders: tuple[Path, Path]) -> None:
    method, model, frozen_models = result("sigmoid", (folders[0], folders[0]))
    loss = method.loss(model, method.tensors(micro_batch(PAIRS), CPU), frozen_models)
    assert loss.sum.item() == pytest.approx(len(PAIRS) * math.log(2))
    assert float(loss.metrics["chosen_reward"].sum) == pytest.approx(0.0, abs=1e-6)


def test_a_first_token_that_nothing_stands_before_is_worth_nothing(folders: tuple[Path, Path]) -> None:
    row = {"input_ids": [5], "rejected_ids": [7], "prompt_tokens": 0, "margin": 0.0}
    for name, expected in {"sigmoid": math.log(2), "sigmoid_norm": math.log(2), "ipo": 6.25}.items():
        method, model, frozen_models = result(name, folders)
        loss = method.loss(model, method.tensors(micro_batch([row]), CPU), frozen_models)
        assert loss.sum.item() == pytest.approx(expected)


def test_a_blank_is_a_pair(folders: tuple[Path, Path]) -> None:
    for name in CONFIGURATIONS:
        method, model, frozen_models = result(name, folders)
        assert np.isfinite(float(method.loss(model, method.blank(CPU), frozen_models).sum.detach()))


def test_random_weights_are_no_reference() -> None:
    tree = {"type": "dpo", "model": {"type": "new", "vocab_size": 32}}
    with pytest.raises(ValueError, match="random weights"):
        TypeAdapter(AnyMethodConfig).validate_python(tree)


def test_a_loss_or_a_reference_need_not_be_named_to_be_changed() -> None:
    tree = {"type": "dpo", "model": {"type": "pretrained", "path": "base"}, "loss": {"beta": 0.7}}
    method: Any = TypeAdapter(AnyMethodConfig).validate_python({**tree, "reference": {"path": "other"}})
    assert (method.loss.type, method.loss.beta, method.reference.type) == ("sigmoid", 0.7, "frozen")
