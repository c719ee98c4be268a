"""Buffers rollouts that are generated some steps before they are trained (`method.staleness`).

    before step s, weights after s - 1:   rollouts of step s + k are generated --> buffered --> trained in step s + k

The delay is a number of steps and does not depend on the clock, so one process that samples and trains in turn has
the same bits as a separate sampler. Commits hold the buffer lane by lane, so a run resumes at any world size. A fork
starts with an empty buffer.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from assay.base.errors import DamagedDataError
from assay.base.shapes import UInt8, UInt64
from assay.data.dataset.columns import TOKENS
from assay.data.loader.batch import LaneShare, MicroBatch, Ragged
from assay.data.loader.line import LineShape
from assay.training.checkpoint.parts import State
from assay.training.checkpoint.rollout_log import parse_rollout_log, rollout_log_file, rollout_log_table
from assay.training.numerics import MetricSum
from assay.training.samples import LaneSamples

LINE = "line"
"""Key of a line's shape in the metadata of a micro-batch's table."""


@dataclass(frozen=True)
class BufferedLane(LaneShare):
    """A lane of buffered rollouts with all that another rank needs to recompute it."""

    upcoming: tuple[tuple[int, LaneShare], ...] = ()
    """Later steps and their prompts, for which this step generated the rollouts of `further_digests`."""


class BufferedRollouts(NamedTuple):
    """One lane's rollouts for a later step."""

    samples: LaneSamples
    policy_step: int
    """Step of the weights that generated them."""
    row_ids: UInt64[np.ndarray, "row"]
    """Row ids of the prompts."""


class RolloutBuffer:
    """Rollouts of this rank's lanes that are not trained yet."""

    def __init__(self, lanes: Sequence[int] = ()) -> None:
        self._lanes = tuple(lanes)
        self._buffered: dict[tuple[int, int], BufferedRollouts] = {}
        """(step, lane) -> rollouts to train on in that step."""

    def has(self, step: int, lane: int) -> bool:
        return (step, lane) in self._buffered

    def put(self, step: int, lanes: Sequence[LaneShare], samples: Sequence[LaneSamples], *, policy_step: int) -> None:
        for lane, lane_samples in zip(lanes, samples, strict=True):
            self._buffered[step, lane.lane] = BufferedRollouts(lane_samples, policy_step, _row_ids(lane))

    def of(self, step: int, lane: LaneShare) -> LaneSamples:
        """Return the samples of a lane; raises `DamagedDataError` if they belong to other prompts."""
        buffered = self._buffered[step, lane.lane]
        if not np.array_equal(buffered.row_ids, _row_ids(lane)):
            raise DamagedDataError(
                f"step {step}, lane {lane.lane}: its rollouts were generated {step - 1 - buffered.policy_step} "
                f"steps before for other prompts than the dataset has now: {len(buffered.row_ids)} then, "
                f"{lane.num_rows} now. A row group was damaged since; restore it from a backup and resume."
            )
        return buffered.samples

    def for_recomputation(self, step: int, lane: LaneShare, upcoming: Mapping[int, LaneShare]) -> BufferedLane:
        """Return the lane's work in step `step` for another rank; `upcoming`: its prompts by step, `step` included."""
        buffered = [
            (future_step, entry.samples.digest)
            for (future_step, owner), entry in sorted(self._buffered.items())
            if owner == lane.lane and entry.policy_step == step - 1 and future_step in upcoming
        ]
        return BufferedLane(
            lane.lane,
            self.of(step, lane).lane.micro_batches,
            upcoming=tuple((future_step, upcoming[future_step]) for future_step, _ in buffered),
            further_digests=tuple(digest for _, digest in buffered),
        )

    def discard_trained(self, trained_step: int) -> None:
        """Discard the rollouts of all steps up to `trained_step`."""
        self._buffered = {key: buffered for key, buffered in self._buffered.items() if key[0] > trained_step}

    def discard_sampled_by(self, policy_step: int) -> None:
        """Discard what these weights generated in a cancelled step: other ranks may have generated less."""
        self._buffered = {
            key: buffered for key, buffered in self._buffered.items() if buffered.policy_step != policy_step
        }

    def state(self) -> State:
        """Return the state of each lane, by lane number."""
        return {
            f"{lane:05d}": _packed(
                {step: buffered for (step, of), buffered in sorted(self._buffered.items()) if of == lane}
            )
            for lane in self._lanes
        }

    def restore(self, state: State) -> None:
        self._buffered = {
            (step, int(lane)): buffered for lane, data in state.items() for step, buffered in _unpacked(int(lane), data)
        }


def _row_ids(lane: LaneShare) -> UInt64[np.ndarray, "row"]:
    ids = [batch.row_ids for batch in lane.micro_batches]
    return np.concatenate(ids) if ids else np.zeros(0, np.uint64)


def _packed(buffered: dict[int, BufferedRollouts]) -> bytes:
    """Return an `.npz` without pickles: a JSON header, and an Arrow table for each micro-batch."""
    head: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray] = {}
    for step, (samples, policy_step, row_ids) in buffered.items():
        metrics = {name: [float(metric.sum), float(metric.weight)] for name, metric in samples.metrics.items()}
        head.append(
            {
                "step": step,
                "policy_step": policy_step,
                "metrics": metrics,
                "digest": samples.digest,
                "micro_batches": len(samples.lane.micro_batches),
            }
        )
        arrays[f"{step}-prompts"] = row_ids
        arrays[f"{step}-journal"] = np.frombuffer(rollout_log_file([rollout_log_table(samples.log or ())]), np.uint8)
        for index, batch in enumerate(samples.lane.micro_batches):
            arrays[f"{step}-{index}"] = np.frombuffer(_table_bytes(batch), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, head=np.frombuffer(json.dumps(head).encode(), np.uint8), **arrays)
    return buffer.getvalue()


def _unpacked(lane: int, data: bytes) -> Iterator[tuple[int, BufferedRollouts]]:
    arrays = np.load(io.BytesIO(data), allow_pickle=False)
    for header in json.loads(arrays["head"].tobytes()):
        step = header["step"]
        batches = tuple(_batch(arrays[f"{step}-{index}"]) for index in range(header["micro_batches"]))
        metrics = {
            name: MetricSum(torch.tensor(total, dtype=torch.float64), weight)
            for name, (total, weight) in header["metrics"].items()
        }
        rollout_log = tuple(parse_rollout_log(arrays[f"{step}-journal"].tobytes()))
        samples = LaneSamples(LaneShare(lane, batches), metrics, header["digest"], rollout_log)
        yield step, BufferedRollouts(samples, header["policy_step"], arrays[f"{step}-prompts"])


def _table_bytes(batch: MicroBatch) -> bytes:
    """Return tokens as lists, with the other columns, as an Arrow stream; its metadata tell the shape of a line."""
    lines = zip(batch.tokens.values, batch.tokens.lengths, strict=True)
    tokens = pa.array([line[:length] for line, length in lines], pa.list_(pa.int64()))
    table = pa.table({"row_ids": pa.array(batch.row_ids), TOKENS: tokens, **batch.columns})
    if batch.line is not None:
        table = table.replace_schema_metadata({LINE: json.dumps(batch.line)})
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
    shape = (table.schema.metadata or {}).get(LINE.encode())
    own_line = None if shape is None else LineShape(*json.loads(shape))
    return MicroBatch(row_ids=row_ids, ragged={TOKENS: Ragged(values, lengths)}, columns=columns, line=own_line)
