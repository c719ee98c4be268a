"""Attention over pages beside float64, of plain torch code and of the kernel: see `test_logits` for where it runs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from assay.models.kernels.paged_attention import PAGE_TOKENS, paged_attention
from no_host_waits import NoHostWaits

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Attention = Callable[..., Tensor]
LENGTHS = (1, 64, 65, 150, 257)
"""Places of the rows: one, a page, one more, two segments of two pages, three."""


class Step(NamedTuple):
    query: Tensor
    new_key: Tensor
    new_value: Tensor
    key_pages: Tensor
    value_pages: Tensor
    page_table: Tensor
    positions: Tensor
    scale: float

    def clone(self) -> "Step":
        return Step(*(item.clone() if isinstance(item, Tensor) else item for item in self))

    def rows(self, rows: slice) -> "Step":
        """The step of some rows alone, over the same pages."""
        by_row = {
            name: getattr(self, name)[rows] for name in ("query", "new_key", "new_value", "page_table", "positions")
        }
        return self.clone()._replace(**by_row)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The kernel's module, with segments of two pages."""
    module = pytest.importorskip("assay.models.kernels.paged_attention_kernel")
    monkeypatch.setattr(module, "PAGES_PER_SEGMENT", 2)
    return module


@pytest.fixture(params=["plain", "kernel"])
def attention(request: pytest.FixtureRequest) -> Attention:
    return paged_attention if request.param == "plain" else request.getfixturevalue("kernel").attend_to_pages


def step(
    lengths: tuple[int, ...] = LENGTHS,
    *,
    heads: tuple[int, int] = (4, 2),
    width: int = 16,
    dtype: torch.dtype = torch.float32,
) -> Step:
    generator = torch.Generator().manual_seed(width)
    slots = -(-max(lengths) // PAGE_TOKENS)
    num_pages = len(lengths) * slots + 1
    num_heads, num_kv_heads = heads

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    pages = normal(2, num_pages, num_kv_heads, PAGE_TOKENS, width)
    table = torch.randperm(num_pages - 1, generator=generator).view(len(lengths), slots)
    for row, length in enumerate(lengths):
        used = -(-length // PAGE_TOKENS)
        table[row, used:] = num_pages - 1
        # What lies behind the newest token is of no sequence.
        pages[:, table[row, used - 1], :, (length - 1) % PAGE_TOKENS :] = 1e4
    pages[:, -1] = 1e4
    new = normal(2, len(lengths), num_kv_heads, width)
    tensors = (normal(len(lengths), num_heads, width), new[0], new[1], pages[0], pages[1])
    positions = torch.tensor(lengths) - 1
    query, new_key, new_value, key_pages, value_pages = (tensor.to(DEVICE, dtype).contiguous() for tensor in tensors)
    return Step(
        query,
        new_key,
        new_value,
        key_pages,
        value_pages,
        table.to(DEVICE, torch.int32),
        positions.to(DEVICE),
        width**-0.5,
    )


def reference(step: Step) -> Tensor:
    """Row by row, head by head, in float64."""
    output = torch.zeros(step.query.shape, dtype=torch.float64)
    group = step.query.shape[1] // step.new_key.shape[1]
    for row, position in enumerate(step.positions.tolist()):
        for head in range(step.query.shape[1]):
            keys, values = (
                torch.cat([*pages[step.page_table[row].long(), head // group]])[: position + 1].double().cpu()
                for pages in (step.key_pages, step.value_pages)
            )
            keys[-1], values[-1] = step.new_key[row, head // group], step.new_value[row, head // group]
            weights = torch.softmax(keys @ step.query[row, head].double().cpu() * step.scale, dim=0)
            output[row, head] = weights @ values
    return output


def assert_close(output: Tensor, expected: Tensor) -> None:
    # float32: sums of up to 257 tokens. bfloat16: factors of 8 bits; values are of size 1, and their mean smaller.
    tolerance = 3e-6 if output.dtype == torch.float32 else 2**-6
    torch.testing.assert_close(output.double().cpu(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "width"),
    [((4, 2), 16), ((2, 2), 8), ((3, 3), 32), ((7, 1), 64), ((2, 1), 80), ((2, 2), 96), ((2, 1), 128)],
)
def test_it_is_the_attention_of_each_row(
    attention: Attention, heads: tuple[int, int], width: int, dtype: torch.dtype
) -> None:
    lengths = LENGTHS if width == 16 else (3, 200)
    case = step(lengths, heads=heads, width=width, dtype=dtype)
    assert_close(attention(*case.clone()), reference(case))


def test_the_newest_key_and_value_are_written_and_nothing_else(attention: Attention) -> None:
    case = step(dtype=torch.bfloat16)
    expected, found = case.clone(), case.clone()
    for row, position in enumerate(case.positions.tolist()):
        page, offset = case.page_table[row, position // PAGE_TOKENS], position % PAGE_TOKENS
        expected.key_pages[page, :, offset] = case.new_key[row]
        expected.value_pages[page, :, offset] = case.new_value[row]
    attention(*found)
    assert all(torch.equal(a, b) for a, b in zip(found[:-1], expected[:-1], strict=True))


def test_the_next_step_reads_what_this_one_wrote(attention: Attention) -> None:
    first = step((64, 10, 130), dtype=torch.bfloat16)
    second = step((65, 11, 131), dtype=torch.bfloat16)
    pages = {"key_pages": first.key_pages, "value_pages": first.value_pages}
    second = second._replace(**pages, page_table=torch.cat([first.page_table, first.page_table[:, :1]], dim=1)[:, :3])
    attention(*first)
    assert_close(attention(*second.clone()), reference(second))


def test_a_row_alone_has_the_bits_that_it_has_among_others(kernel: Any) -> None:
    case = step(dtype=torch.bfloat16)
    together = kernel.attend_to_pages(*case.clone())
    for row in range(len(LENGTHS)):
        rows = slice(row, row + 1)
        assert torch.equal(kernel.attend_to_pages(*case.rows(rows)), together[rows])
        fewer = case.rows(rows)
        used = LENGTHS[row] // PAGE_TOKENS + 1
        assert torch.equal(
            kernel.attend_to_pages(*fewer._replace(page_table=fewer.page_table[:, :used])), together[rows]
        )


def test_large_scores_do_not_overflow(attention: Attention) -> None:
    case = step((1, 130))._replace(scale=300.0)
    assert_close(attention(*case.clone()), reference(case))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda case: case._replace(positions=(case.positions - 1).clamp(min=0)),
        lambda case: case._replace(page_table=case.page_table.flip(0)),
        lambda case: case._replace(new_value=case.new_value * 1.01),
        lambda case: case._replace(scale=case.scale * 1.01),
        lambda case: case._replace(query=case.query.flip(1)),
    ],
)
def test_the_comparison_notices_a_wrong_step(wrong: Callable[[Step], Any]) -> None:
    case = step((5, 70))
    with pytest.raises(AssertionError):
        assert_close(paged_attention(*wrong(case).clone()), reference(case))


def test_no_rows_have_no_output_and_the_host_does_not_wait(attention: Attention) -> None:
    case = step((5, 70))
    none = case.rows(slice(0))
    with NoHostWaits():
        assert attention(*none).shape == none.query.shape
        attention(*case)
