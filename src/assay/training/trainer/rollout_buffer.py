"""What the model said ahead of the steps that learn from it: made, and not yet learned.

    before update s, weights after s - 1:   step s + k is said --> held --> learned in update s + k

So what a step learns from was said k steps before, whatever the clock says: a sampler elsewhere may take its
time, and a process that samples and learns in turn has the same bits. What is held is part of every commit,
lane by lane, so it goes on at any world size; a fork takes nothing over, and says its first steps anew.
"""

import io
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from assay.base.errors import DamagedDataError
from assay.base.shapes import UInt8, UInt64
from assay.data.dataset.columns import TOKENS
from assay.data.loader.batch import LaneShare, MicroBatch, Ragged, StepShare
from assay.training.checkpoint.journal import journal_file, journal_groups, journal_table
from assay.training.checkpoint.parts import State
from assay.training.trainer.method import MetricSum, RolledOut
from assay.training.trainer.numerics import combined_digest


@dataclass(frozen=True)
class AnsweredLane(LaneShare):
    """A lane whose prompts were answered steps before, as another rank needs it: what it learns from."""

    ahead: tuple[tuple[int, LaneShare], ...] = ()
    """Steps to come, and their prompts, which were answered in this one;"""
    said: tuple[int, ...] = ()
    """and digests of the answers."""


class LaneAhead(NamedTuple):
    """A lane's rollouts for a step to come."""

    rolled_out: RolledOut
    policy_step: int
    """Updates behind the weights that said it."""
    row_ids: UInt64[np.ndarray, "row"]
    """The prompts."""


class InFlight:
    """What this rank's lanes have said and not learned."""

    def __init__(self, lanes: Sequence[int] = ()) -> None:
        self._lanes = tuple(lanes)
        self._said: dict[tuple[int, int], LaneAhead] = {}
        """Step, lane -> what the lane learns from in that step."""

    def has(self, step: int, lane: int) -> bool:
        """It was said."""
        return (step, lane) in self._said

    def put(
        self, step: int, lanes: Sequence[LaneShare], made: Sequence[RolledOut], *, policy_step: int
    ) -> None:
        """Hold what the prompts of `lanes` became."""
        for lane, rolled_out in zip(lanes, made, strict=True):
            self._said[step, lane.lane] = LaneAhead(rolled_out, policy_step, _row_ids(lane))

    def of(self, step: int, lane: LaneShare) -> RolledOut:
        """What was said to the lane's prompts."""
        said = self._said[step, lane.lane]
        if not np.array_equal(said.row_ids, _row_ids(lane)):
            raise DamagedDataError(
                f"step {step}, lane {lane.lane}: its prompts were answered {step - 1 - said.policy_step} steps "
                f"before, and are not the rows that the dataset gives now: {len(said.row_ids)} then, "
                f"{lane.num_rows} now. A row group was damaged since; restore it from a backup and resume."
            )
        return said.rolled_out

    def as_checked(self, step: int, lane: LaneShare, ahead: Mapping[int, LaneShare]) -> AnsweredLane:
        """The lane's work in update number `step`; `ahead`: its prompts by step, `step` itself included."""
        said = [
            (to_come, each.rolled_out.digest)
            for (to_come, of), each in sorted(self._said.items())
            if of == lane.lane and each.policy_step == step - 1 and to_come in ahead
        ]
        return AnsweredLane(
            lane.lane,
            self.of(step, lane).lane.micro_batches,
            ahead=tuple((to_come, ahead[to_come]) for to_come, _ in said),
            said=tuple(digest for _, digest in said),
        )

    def forget(self, *, learned: int) -> None:
        """What is learned in step `learned` or before."""
        self._said = {key: said for key, said in self._said.items() if key[0] > learned}

    def forget_said_by(self, policy_step: int) -> None:
        """What these weights said, in a step that is abandoned: other ranks may have said less."""
        self._said = {key: said for key, said in self._said.items() if said.policy_step != policy_step}

    def state(self) -> State:
        """See `StatefulPart`: each lane's, by its number."""
        return {
            f"{lane:05d}": _packed(
                {step: said for (step, of), said in sorted(self._said.items()) if of == lane}
            )
            for lane in self._lanes
        }

    def restore(self, state: State) -> None:
        """See `StatefulPart`."""
        self._said = {
            (step, int(lane)): said for lane, data in state.items() for step, said in _unpacked(int(lane), data)
        }


def with_said(digest: int, said: Sequence[int]) -> int:
    """One digest of a lane's gradient and of what was said ahead in the same step."""
    return combined_digest([digest, *said]) if said else digest


def looking_ahead(shares: Iterator[StepShare], num_steps: int) -> Iterator[StepShare]:
    """Each share, with the prompts of so many that come after it."""
    window = deque(islice(shares, num_steps + 1))
    while window:
        share = window.popleft()
        yield replace(share, ahead=tuple(each.lanes for each in window)) if window else share
        window.extend(islice(shares, 1))


def _row_ids(lane: LaneShare) -> UInt64[np.ndarray, "row"]:
    ids = [batch.row_ids for batch in lane.micro_batches]
    return np.concatenate(ids) if ids else np.zeros(0, np.uint64)


def _packed(said: dict[int, LaneAhead]) -> bytes:
    """As an `.npz` without pickles: a head in JSON, and for each micro-batch an Arrow table."""
    head: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray] = {}
    for step, (made, policy_step, row_ids) in said.items():
        metrics = {name: [float(each.sum), float(each.weight)] for name, each in made.metrics.items()}
        head.append(
            {
                "step": step,
                "policy_step": policy_step,
                "metrics": metrics,
                "digest": made.digest,
                "micro_batches": len(made.lane.micro_batches),
            }
        )
        arrays[f"{step}-prompts"] = row_ids
        arrays[f"{step}-journal"] = np.frombuffer(journal_file([journal_table(made.journal)]), np.uint8)
        for index, batch in enumerate(made.lane.micro_batches):
            arrays[f"{step}-{index}"] = np.frombuffer(_table_bytes(batch), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, head=np.frombuffer(json.dumps(head).encode(), np.uint8), **arrays)
    return buffer.getvalue()


def _unpacked(lane: int, data: bytes) -> Iterator[tuple[int, LaneAhead]]:
    arrays = np.load(io.BytesIO(data), allow_pickle=False)
    for told in json.loads(arrays["head"].tobytes()):
        step = told["step"]
        batches = tuple(_batch(arrays[f"{step}-{index}"]) for index in range(told["micro_batches"]))
        metrics = {
            name: MetricSum(torch.tensor(total, dtype=torch.float64), weight)
            for name, (total, weight) in told["metrics"].items()
        }
        journal = tuple(journal_groups(arrays[f"{step}-journal"].tobytes()))
        made = RolledOut(LaneShare(lane, batches), metrics, told["digest"], journal)
        yield step, LaneAhead(made, told["policy_step"], arrays[f"{step}-prompts"])


def _table_bytes(batch: MicroBatch) -> bytes:
    """Tokens as lists beside the other columns, as Arrow writes them."""
    lines = zip(batch.tokens.values, batch.tokens.lengths, strict=True)
    tokens = pa.array([line[:length] for line, length in lines], pa.list_(pa.int64()))
    table = pa.table({"row_ids": pa.array(batch.row_ids), TOKENS: tokens, **batch.columns})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _batch(data: UInt8[np.ndarray, "byte"]) -> MicroBatch:
    table = pa.ipc.open_stream(data.tobytes()).read_all().combine_chunks()
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    row_ids, tokens = columns.pop("row_ids").to_numpy(), columns.pop(TOKENS)
    lengths = tokens.value_lengths().to_numpy().astype(np.int32)
    values = np.zeros((len(lengths), int(lengths.max(initial=0))), np.int64)
    for line, length, own in zip(values, lengths.tolist(), tokens, strict=True):
        line[:length] = own.values.to_numpy()
    return MicroBatch(row_ids=row_ids, ragged={TOKENS: Ragged(values, lengths)}, columns=columns)
