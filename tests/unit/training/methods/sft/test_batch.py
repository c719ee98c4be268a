"""Which tokens are trained, in rows that are padded and in rows that share a sequence."""

import numpy as np
import pyarrow as pa
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.loader.batch import MicroBatch, Packing, Ragged
from assay.training.methods.sft.batch import sft_tensors, trained_tokens
from assay.training.methods.sft.config import SftConfig

MODEL = {"type": "new", "vocab_size": 99}
CPU = torch.device("cpu")


def config(train_on: str) -> SftConfig:
    return SftConfig.model_validate({"model": MODEL, "train_on": train_on})


def ragged(rows: list[list[int]], more_padding: int = 0) -> Ragged:
    values = np.zeros((len(rows), max(map(len, rows)) + more_padding), np.int64)
    for line, row in zip(values, rows, strict=True):
        line[: len(row)] = row
    return Ragged(values, np.array([len(row) for row in rows], np.int32))


def padded(rows: list[list[int]], spans: list[list[int]], more_padding: int = 0) -> MicroBatch:
    ids = np.arange(100, 100 + len(rows), dtype=np.uint64)
    columns = {"language": pa.array([f"l{row}" for row in range(len(rows))])}
    return MicroBatch(ids, {"input_ids": ragged(rows, more_padding), "trained_spans": ragged(spans)}, columns)


def packed(rows: list[list[int]], spans: list[list[int]], per_line: int) -> MicroBatch:
    """So many rows in each line, with a line of padding behind the longest."""
    lines = [rows[first : first + per_line] for first in range(0, len(rows), per_line)]
    width = max(sum(map(len, line)) for line in lines) + 2
    tokens, positions, segments = (np.zeros((len(lines), width), np.int64) for _ in range(3))
    for number, line in enumerate(lines):
        index = 0
        for segment, row in enumerate(line, start=1):
            part = slice(index, index + len(row))
            tokens[number, part], segments[number, part] = row, segment
            positions[number, part] = np.arange(len(row))
            index += len(row)
    apart = padded(rows, spans)
    borders = np.concatenate([[0], np.cumsum(apart.tokens.lengths)]).astype(np.int32)
    return MicroBatch(
        apart.row_ids,
        {"trained_spans": apart.ragged["trained_spans"], "input_ids": Ragged(tokens, apart.tokens.lengths)},
        apart.columns,
        Packing(positions.astype(np.int32), segments.astype(np.int32), borders),
    )


@st.composite
def rows_and_spans(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=6))
    rows = [[10 * row + index + 1 for index in range(length)] for row, length in enumerate(lengths)]
    spans = []
    for length in lengths:
        borders = sorted(draw(st.sets(st.integers(0, length), max_size=4)))
        spans.append(borders[: len(borders) // 2 * 2])
    return rows, spans


def expected(rows: list[list[int]], spans: list[list[int]], train_on: str) -> list[list[int]]:
    """The trained tokens of each row, by the definition."""
    return [
        [
            token
            for index, token in enumerate(row)
            if index > 0
            and (train_on == "all" or any(b <= index < e for b, e in zip(pairs[::2], pairs[1::2], strict=True)))
        ]
        for row, pairs in zip(rows, spans, strict=True)
    ]


@settings(deadline=None)
@given(drawn=rows_and_spans(), per_line=st.integers(1, 3), train_on=st.sampled_from(["all", "spans"]))
def test_the_trained_tokens_are_those_of_the_definition_however_rows_lie(
    drawn: tuple[list[list[int]], list[list[int]]], per_line: int, train_on: str
) -> None:
    rows, spans = drawn
    target = expected(rows, spans, train_on)
    for batch in (padded(rows, spans), packed(rows, spans, per_line)):
        trained = trained_tokens(batch, in_spans=train_on == "spans")
        assert batch.tokens.values[trained].tolist() == [token for row in target for token in row]
        tensors = sft_tensors(batch, config(train_on), CPU)
        assert tensors["num_trained"].tolist() == [len(row) for row in target]
        assert tensors["input_ids"][:, 1:][tensors["scored"]].tolist() == batch.tokens.values[trained].tolist()


@settings(deadline=None)
@given(drawn=rows_and_spans(), per_line=st.integers(1, 3))
def test_packed_rows_can_be_taken_apart(drawn: tuple[list[list[int]], list[list[int]]], per_line: int) -> None:
    rows, spans = drawn
    chosen = list(range(len(rows)))[::-2]
    used = packed(rows, spans, per_line).take(chosen)
    assert used.packing is None and used.row_ids.tolist() == [100 + row for row in chosen]
    for line, length, row in zip(used.tokens.values, used.tokens.lengths, chosen, strict=True):
        assert line[:length].tolist() == rows[row] and not line[length:].any()
    assert used.columns["language"].to_pylist() == [f"l{row}" for row in chosen]
    assert used.ragged["trained_spans"].lengths.tolist() == [len(spans[row]) for row in chosen]
