"""Model FLOPs beside the products that torch counts, and the cards' rates."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from assay.models.causal import build_causal
from assay.models.causal_config import LoraConfig, NewCausalConfig
from assay.models.config import NewEncoderConfig
from assay.models.flops import causal_flops, encoder_flops
from assay.models.token_scores import CausalNetwork
from assay.records.devices import DEVICES, dense_bf16_flops, find_device

ROWS, TOKENS = 5, 48
LENGTHS = np.full(ROWS, TOKENS)


def small(architecture: str, **keys: object) -> NewCausalConfig:
    return NewCausalConfig.model_validate(
        {
            "architecture": architecture,
            "vocab_size": 97,
            "hidden_size": 64,
            "num_layers": 3,
            "num_heads": 4,
            "num_kv_heads": None if architecture == "gpt2" else 2,
            "intermediate_size": 160,
            **keys,
        }
    )


def counted_flops(network: torch.nn.Module) -> int:
    """Return the FLOPs of a forward and a backward pass as torch counts them; attention without a mask's saving."""
    network.set_attn_implementation("eager")  # torch counts no FLOPs in its fused attention on a CPU
    with FlopCounterMode(display=False) as counter:
        network(input_ids=torch.zeros(ROWS, TOKENS, dtype=torch.int64), use_cache=False).logits.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3", "olmo2", "gpt2"])
def test_training_needs_the_products_that_torch_counts(architecture: str) -> None:
    config = small(architecture)
    flops = causal_flops(config)
    assert flops is not None
    masked_half = 3 * flops.attention * ROWS * TOKENS**2
    assert flops.training(LENGTHS, ROWS * TOKENS) + masked_half == counted_flops(build_causal(config))


def test_frozen_matrices_below_adapters_have_no_weight_gradients() -> None:
    config = small("llama", lora=LoraConfig(rank=4))
    flops, base = causal_flops(config), causal_flops(small("llama"))
    assert flops is not None and base is not None
    network = CausalNetwork(config).network
    network.get_input_embeddings().weight.requires_grad_(True)  # so that the first layer's input has a gradient
    masked_half = 3 * flops.attention * ROWS * TOKENS**2
    assert flops.training(LENGTHS, ROWS * TOKENS) + masked_half == pytest.approx(counted_flops(network), rel=0.01)
    assert flops.training(LENGTHS, 0) < base.training(LENGTHS, 0)


def test_a_reference_costs_a_forward_pass_and_unscored_tokens_no_head() -> None:
    flops = causal_flops(small("llama"))
    assert flops is not None
    alone, with_reference = (flops.training(LENGTHS, 60, num_references=count) for count in (0, 1))
    assert with_reference == pytest.approx(alone * 4 / 3)
    assert flops.forward(LENGTHS, 60) - flops.forward(LENGTHS, 20) == 2 * 40 * 64 * 97


def test_an_encoder_attends_to_whole_sequences() -> None:
    shape = NewEncoderConfig(vocab_size=97, hidden_size=64, num_layers=2, intermediate_size=128).shape
    flops = encoder_flops(shape)
    products = 2 * TOKENS * ROWS * 2 * (4 * 64 * 64 + 2 * 64 * 128)
    attention = 2 * ROWS * (2 * TOKENS**2 * 64) * 2  # queries x keys, and their sums of values
    assert flops.forward(LENGTHS, 0) == products + attention


@pytest.mark.parametrize(
    ("card", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A10G", 70),
        ("NVIDIA A10", 125),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("NVIDIA GeForce RTX 4090", 165),
        ("AMD Instinct MI300X", 1307),
    ],
)
def test_a_card_is_known_by_its_drivers_name(card: str, tflops: int) -> None:
    assert dense_bf16_flops(card) == tflops * 1e12


def test_sizes_of_a_cards_memory_are_told_apart() -> None:
    assert [find_device(card) for card in ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "a100")] == [
        "A100 40GB", "A100", "A100",
    ]  # fmt: skip
    assert find_device("NVIDIA H100 80GB HBM3") == "H100" and find_device("NVIDIA H100 PCIe") == "H100 PCIe"


def test_an_unknown_card_has_no_rate() -> None:
    assert dense_bf16_flops("NVIDIA H1000") is None and dense_bf16_flops("Tesla T4") is None
    assert all(1e13 < rate < 1e16 for rate in (device.bf16_flops for device in DEVICES.values()))
