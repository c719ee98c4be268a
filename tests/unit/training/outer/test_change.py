"""The bytes of a change: what they lose, how many they are, and what is refused."""

import json
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from safetensors.torch import load, save

from assay.base.errors import AssayError, DamagedDataError
from assay.training.outer.change import BLOCK, LARGEST, METADATA, decode, encode

SHAPES = {"embedding": (300, 48), "matrix": (48, 96), "norm": (48,), "bias": (7,), "scale": (), "none": (0, 3)}


def random_change(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {name: torch.randn(shape) * 10.0 ** -(index + 1) for index, (name, shape) in enumerate(SHAPES.items())}


def largest_of_blocks(values: torch.Tensor) -> torch.Tensor:
    """The largest absolute value of the block of each value."""
    flat = values.abs().flatten().tolist()
    blocks = [flat[start : start + BLOCK] for start in range(0, len(flat), BLOCK)]
    return torch.tensor([max(block) for block in blocks for _ in block]).reshape(values.shape)


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_a_value_is_off_by_at_most_half_a_code(bits) -> None:
    change, decoded = random_change(), decode(encode(random_change(), bits))
    assert {name: tensor.shape for name, tensor in decoded.items()} == {
        name: torch.Size(SHAPES[name]) for name in SHAPES
    }
    for name, values in change.items():
        # bfloat16 has 8 bits, so rounding a scale up adds at most 2**-7 of it.
        half = largest_of_blocks(values) / (2 ** (bits - 1) - 1) * (1 + 2**-7) / 2
        assert ((decoded[name] - values).abs() <= half * (1 + 1e-6)).all(), name


@settings(deadline=None, max_examples=60)
@given(
    values=arrays("float32", array_shapes(max_dims=2, max_side=90), elements=st.floats(-LARGEST, LARGEST, width=32)),
    bits=st.sampled_from([4, 8, 16]),
)
def test_no_finite_value_breaks_the_bound(values, bits) -> None:
    change = torch.from_numpy(values)
    decoded = decode(encode({"w": change}, bits))["w"]
    codes = 2 ** (bits - 1) - 1
    half = largest_of_blocks(change).double() / codes * (1 + 2**-7) / 2 * (1 + 1e-6)
    zeroed = codes * torch.finfo(torch.float32).tiny  # blocks of smaller values become zeros
    assert ((decoded.double() - change.double()).abs() <= half.clamp(min=zeroed)).all()


def test_codes_are_the_nearest_multiples_of_the_scale() -> None:
    change = torch.tensor([-7.0, -3.4, -0.5, 0.0, 0.5, 1.5, 2.6, 7.0])
    # A scale of 1; halves go to the even neighbour.
    assert decode(encode({"w": change}, 4))["w"].tolist() == [-7, -3, 0, 0, 0, 2, 3, 7]


def test_32_bits_are_exact() -> None:
    change = {**random_change(), "edges": torch.tensor([0.0, -0.0, 1e-45, -LARGEST, torch.finfo().eps])}
    for name, values in decode(encode(change, 32)).items():
        assert values.view(torch.int32).equal(change[name].view(torch.int32)), name


def test_small_tensors_are_not_rounded_with_large_neighbours() -> None:
    decoded = decode(encode({"large": torch.full((5,), 1e6), "small": torch.full((5,), 1e-6)}, 4))
    assert decoded["small"].tolist() == pytest.approx([1e-6] * 5, rel=0.01)


@pytest.mark.parametrize("bits, expected", [(4, 4.25), (8, 8.25), (16, 16.25), (32, 32)])
def test_the_bits_a_weight(bits, expected) -> None:
    sizes = {f"layers.{index}.weight": torch.randn(256, 256) for index in range(8)}
    header = 500
    num_bits = 8 * (len(encode(sizes, bits)) - header) / (8 * 256 * 256)
    assert expected - 0.01 < num_bits <= expected


def test_the_order_of_the_names_is_not_in_the_bytes() -> None:
    change = random_change()
    assert encode(change, 4) == encode(dict(reversed(change.items())), 4)


@pytest.fixture
def restored_settings():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("restored_settings")
@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_the_bytes_depend_on_nothing_but_the_change(bits) -> None:
    change = {**random_change(), "large": torch.randn(1000, 333), "tiny": torch.tensor([2e-38, 1e-39])}
    found = set()
    for threads, flushes in [(1, False), (2, False), (3, False), (1, True)]:
        torch.set_num_threads(threads)
        assert torch.set_flush_denormal(flushes)
        data = encode(change, bits)
        found.add((data, *(values.numpy().tobytes() for values in decode(data).values())))
    assert len(found) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 2 * LARGEST])
@pytest.mark.parametrize("bits", [4, 32])
def test_values_that_are_not_finite_are_refused(value, bits) -> None:
    change = random_change()
    change["matrix"][3, 4] = value
    with pytest.raises(AssayError, match=r"^matrix: .*diverged\. Lower trainer\.optimizer\.learning_rate"):
        encode(change, bits)


def without_metadata(data: bytes) -> bytes:
    return bytes(save(load(data)))


def with_fewer_codes(data: bytes) -> bytes:
    tensors = load(data)
    length = struct.unpack("<Q", data[:8])[0]
    metadata = {METADATA: json.loads(data[8 : 8 + length])["__metadata__"][METADATA]}
    return bytes(save({**tensors, "codes": tensors["codes"][:-1]}, metadata=metadata))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"not a safetensors file",
        lambda data: data[:-1],
        lambda data: data.replace(b'\\"bits\\":4', b'\\"bits\\":8'),
        lambda data: data.replace(b'\\"bits\\":4', b'\\"bits\\":5'),
        lambda data: data.replace(b'\\"shapes\\"', b'\\"forms_\\"'),
        lambda data: data.replace(b"codes", b"kodes"),
        without_metadata,
        with_fewer_codes,
    ],
)
def test_other_bytes_are_refused_with_the_fix(damage) -> None:
    data = encode(random_change(), 4)
    assert damage(data) != data
    with pytest.raises(DamagedDataError, match=r"not a change of weights .* Restore it in the meeting place"):
        decode(damage(data))
