"""The loader in other training loops: the micro-batches of one rank, in assay's order, as an `IterableDataset`.

    from assay.torch import RowLoader

    loader = RowLoader("datasets/mine", global_batch_size=64, micro_batch_size=8, seed=0)
    for batch in loader:            # one epoch, or what is left of it
        ...
    state = loader.state_dict()     # epoch and step, the same on every rank

    rows of an optimizer step, in the order of the lanes --cut--> its micro-batches --a run of them--> rank

The rows of a step follow from the dataset's fingerprint, the seed and the epoch. So the state is a number of optimizer
steps, and another number of ranks goes on with it: ranks only share the same micro-batches in another way. Every rank
has the same number of micro-batches in every step, and none of them is empty, because loops of other libraries count
on both. Nothing is padded, repeated or dropped for that: see `_Epoch`.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import torch
from torch import distributed
from torch.utils.data import IterableDataset, get_worker_info

from assay.base.config import LoadedConfig, validated
from assay.base.errors import ConfigError, DataError
from assay.base.shapes import Bool
from assay.data.dataset.columns import PROMPT_TOKENS, REFERENCE_LOGPROBS, REJECTED, SPANS, TOKENS
from assay.data.dataset.dataset import Dataset as OpenedDataset
from assay.data.dataset.split import whole_view
from assay.data.loader.batch import MicroBatch, Ragged
from assay.data.loader.config import LoaderConfig
from assay.data.loader.loader import Loader
from assay.data.loader.order import Geometry
from assay.records.cursor import Cursor
from assay.records.row_receipts import LoaderFacts
from assay.training.methods.sft.batch import trained_tokens

if TYPE_CHECKING:
    from assay.api.datasets import Dataset

__all__ = ["RowLoader", "attach", "packed", "padded", "pairs"]

IGNORED = -100
"""The label of tokens that cross-entropy leaves out."""
Batch: TypeAlias = dict[str, Any]


def padded(rows: MicroBatch) -> Batch:
    """Return `input_ids`, `attention_mask` and `labels` [row, token] for a causal language model.

    Labels are the tokens themselves, which models of transformers shift, and -100 on padding, on first tokens and, in
    chats, on what the assistant did not write.
    """
    ids = torch.from_numpy(rows.tokens.values)
    trained = torch.from_numpy(_trained(rows))
    mask = torch.from_numpy(rows.tokens.mask())
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": ids.masked_fill(~trained, IGNORED)}


def packed(rows: MicroBatch) -> Batch:
    """Return the same as one line without padding [1, token], with `position_ids` that begin again at each row.

    Attention must keep rows apart: variable-length attention does by `position_ids`, other kinds do not.
    """
    mask = rows.tokens.mask()
    ids = torch.from_numpy(rows.tokens.values[mask][None])
    trained = torch.from_numpy(_trained(rows)[mask][None])
    positions = np.broadcast_to(np.arange(mask.shape[1]), mask.shape)[mask][None]
    labels = ids.masked_fill(~trained, IGNORED)
    return {"input_ids": ids, "position_ids": torch.from_numpy(positions.copy()), "labels": labels}


def pairs(rows: MicroBatch) -> Batch:
    """Return preference pairs as TRL's `DataCollatorForPreference`: all chosen sequences, then all rejected ones.

    `input_ids`, `attention_mask` and `completion_mask` [2 x row, token]; of scored datasets also `ref_chosen_logps`
    and `ref_rejected_logps` [row].
    """
    columns = [rows.ragged[TOKENS], rows.ragged[REJECTED]]
    sequences = _joined_ragged([(column, 0, len(column.lengths)) for column in columns])
    mask = sequences.mask()
    prompts = np.tile(rows.columns[PROMPT_TOKENS].to_numpy(zero_copy_only=False), 2)
    completion = mask & (np.arange(mask.shape[1]) >= prompts[:, None])
    batch = {
        "input_ids": torch.from_numpy(sequences.values),
        "attention_mask": torch.from_numpy(mask).long(),
        "completion_mask": torch.from_numpy(completion).long(),
    }
    for name in REFERENCE_LOGPROBS:
        if name in rows.columns:
            batch[name] = torch.tensor(rows.columns[name].to_pylist(), dtype=torch.float32)
    return batch


_COLLATORS: Mapping[str, tuple[Callable[[MicroBatch], Batch], tuple[str, ...]]] = {
    "text": (padded, (TOKENS,)),
    "chat": (padded, (TOKENS, SPANS)),
    "pairs": (pairs, (TOKENS, REJECTED, PROMPT_TOKENS, *REFERENCE_LOGPROBS)),
}
"""Format of the rows -> collator and the columns that it reads, if the dataset has them."""
_OPTIONS = ("collate", "global_batch_size", "micro_batch_size", "columns", "row_ids", "rank", "world_size")


def _trained(rows: MicroBatch) -> Bool[np.ndarray, "row token"]:
    return trained_tokens(rows, in_spans=SPANS in rows.ragged)


class RowLoader(IterableDataset[Batch]):
    """The micro-batches of one rank, in assay's order, with a state that fits any number of ranks."""

    batch_size = prefetch_factor = None
    drop_last = False
    """What Accelerate's `skip_first_batches` asks of a loader."""
    on_rows: Callable[[int, list[int]], None] | None = None
    """Called with the step, from 0, and the row ids of each micro-batch, as `assay.record` wants."""

    def __init__(
        self,
        dataset: "str | Path | Dataset",
        collate: Callable[[MicroBatch], Batch] | None = None,
        *,
        global_batch_size: int,
        micro_batch_size: int | None = None,
        columns: Sequence[str] = (),
        row_ids: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        **order: Any,
    ) -> None:
        """Open a dataset; raise `AssayError` if it or the order does not fit.

        `collate`: `padded`, `packed`, `pairs`, or a function of a `MicroBatch`; by default that of the rows' format.
        `global_batch_size`: rows of an optimizer step, over all ranks. `micro_batch_size`: rows of one forward pass on
        one rank; by default all of the rank's rows of a step. `columns`: further columns that `collate` reads.
        `row_ids`: whether batches have `row_ids` [row]. `rank` and `world_size`: by default those of torch.distributed,
        or of torchrun. `order`: keys of a recipe's `loader`, such as `seed=1` or `window_rows=8192`.
        """
        if (rank is None) != (world_size is None):
            raise ConfigError("rank and world_size: give both, or neither to take those of torch.distributed.")
        self._folder = _folder_of(dataset)
        self._collate = collate
        self._columns = tuple(columns)
        self._has_row_ids = row_ids
        self._explicit_rank = None if rank is None or world_size is None else (rank, world_size)
        self._config = _order_config(global_batch_size, order)
        self._micro_batch_size = micro_batch_size
        if micro_batch_size is not None and (micro_batch_size < 1 or global_batch_size % micro_batch_size):
            raise ConfigError(
                f"global_batch_size={global_batch_size} is not a multiple of micro_batch_size={micro_batch_size}. "
                "Change micro_batch_size, which may differ between resumes; global_batch_size must not."
            )
        self._step = 0
        # Shared with worker processes, which count the steps of their own copy.
        self._is_read_elsewhere = torch.zeros(1, dtype=torch.bool).share_memory_()  # type: ignore[no-untyped-call]
        self._rows  # noqa: B018  # opens the dataset, so that wrong input is found here

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_rows", "_collator", "on_rows")}

    def __repr__(self) -> str:
        size = self._config.global_batch_size
        return f"RowLoader({str(self._folder)!r}, global_batch_size={size}, step={self._step})"

    @cached_property
    def _rows(self) -> Loader:
        opened = OpenedDataset.open(self._folder)
        self._fingerprint = opened.fingerprint
        present = opened.manifest.columns
        if self._collate is None and opened.manifest.format not in _COLLATORS:
            raise ConfigError(
                f"{self._folder}: rows of the format '{opened.manifest.format}' have no collator here. Give collate=, "
                "a function of an assay MicroBatch, and the columns that it reads as columns=[...]."
            )
        if self._collate is pairs and REJECTED not in present:
            raise ConfigError(
                f"{self._folder}: collate=pairs needs rows of the format 'pairs', not '{opened.manifest.format}'."
            )
        if unknown := [name for name in self._columns if name not in present]:
            raise ConfigError(f"{self._folder}: no column '{unknown[0]}'. It has: {', '.join(present)}.")
        self._collator, of_format = _COLLATORS.get(opened.manifest.format, (padded, (TOKENS,)))
        columns = dict.fromkeys([*(name for name in of_format if name in present), *self._columns])
        return Loader(whole_view(opened), self._config, tuple(columns))

    @property
    def rank_and_world_size(self) -> tuple[int, int]:
        """The rank that this loader reads for, and the number of ranks."""
        if self._explicit_rank is not None:
            return self._explicit_rank
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

    @property
    def micro_batches_per_step(self) -> int:
        """Micro-batches of this rank in every optimizer step: the loop's gradient accumulation."""
        total, (rank, world_size) = self._config.global_batch_size, self.rank_and_world_size
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank={rank} is not one of world_size={world_size} ranks, which count from 0.")
        size = self._micro_batch_size or max(1, total // world_size)
        if total % (size * world_size):
            fitting = [ranks for ranks in range(1, total + 1) if total % (size * ranks) == 0]
            raise ConfigError(
                f"global_batch_size={total} does not divide into micro-batches of {size} rows on {world_size} ranks. "
                f"Number of ranks that fit: {', '.join(map(str, fitting)) or 'none'}. Or change micro_batch_size, "
                "which may differ between resumes; global_batch_size must not."
            )
        return total // (size * world_size)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch."""
        return self._epoch.num_steps

    @property
    def _epoch(self) -> "_Epoch":
        per_step = self.micro_batches_per_step * self.rank_and_world_size[1]
        return _Epoch.of(self._rows.geometry, per_step)

    def __len__(self) -> int:
        """Return the micro-batches of this rank in an epoch."""
        return self.steps_per_epoch * self.micro_batches_per_step

    def facts(self) -> LoaderFacts:
        """Return what an audit of a recorded run compares the rows with."""
        num_rows, world_size = self._rows.geometry.num_rows, self.rank_and_world_size[1]
        return LoaderFacts(self._fingerprint, num_rows, self.steps_per_epoch, world_size)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch from its first row, unless the loader is in it already."""
        if epoch != self._step // self.steps_per_epoch:
            self._step = epoch * self.steps_per_epoch

    def state_dict(self, *, step: int | None = None) -> dict[str, Any]:
        """Return the state after the steps that were handed out whole; the same on every rank.

        `step`: the steps of the loop since training began, for loops that read ahead.
        """
        worker = get_worker_info()
        if step is None and worker is None and self._is_read_elsewhere.item():
            raise ConfigError(
                "the loader is read in a worker process, which reads ahead: call state_dict(step=...) with the number "
                "of optimizer steps that are done, or iterate over the loader itself (it reads in threads)."
            )
        return {**self._identity(), "step": self._step if step is None else step}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on after the steps of a state, on any number of ranks.

        Raises `AssayError` if the state is of other rows, or of another order.
        """
        own, step = self._identity(), state_dict.get("step")
        if not isinstance(step, int) or step < 0 or not own.keys() <= state_dict.keys():
            raise DataError(
                f"this is no state of assay.torch.RowLoader: it has {', '.join(map(str, state_dict)) or 'no keys'}. "
                "Load what state_dict() returned."
            )
        if state_dict["fingerprint"] != own["fingerprint"]:
            raise DataError(
                f"{self._folder} has fingerprint {own['fingerprint'][:12]}…, the state {state_dict['fingerprint'][:12]}"
                "…: other rows, or other bytes. Go on with the dataset of the state, or begin again."
            )
        if changed := [name for name in own if state_dict[name] != own[name]]:
            values = "; ".join(f"{name} was {state_dict[name]!r} and is {own[name]!r}" for name in changed)
            raise ConfigError(f"the state is of another order of the rows: {values}. Use the values of the state.")
        self._step = step

    def _identity(self) -> dict[str, Any]:
        """Return what decides which rows a step has."""
        keys = ("seed", "global_batch_size", "lanes", "window_rows", "shuffle_radius_windows", "layout")
        order = self._config.model_dump(mode="json", include=set(keys))
        return {"fingerprint": self._fingerprint, **order, "epoch_end": self._epoch.end}

    def __iter__(self) -> Iterator[Batch]:
        """Yield the rest of the epoch; of the next one, if this one is done.

        An iteration that was left early goes on after its last whole step.
        """
        worker = get_worker_info()
        if worker is not None:
            if worker.num_workers > 1:
                raise ConfigError(
                    "the loader reads in threads: use num_workers=0, or 1. Several would repeat its rows."
                )
            self._is_read_elsewhere.fill_(True)
        epoch_steps, per_step = self._epoch, self.micro_batches_per_step
        first = self.rank_and_world_size[0] * per_step
        epoch, done = divmod(self._step, epoch_steps.num_steps)
        first_step = epoch * epoch_steps.num_steps
        collate = self._collate or self._collator
        for step, rows in _micro_batches(self._rows, epoch_steps, epoch, done, range(first, first + per_step)):
            for number, micro_batch in enumerate(rows, 1):
                batch = collate(micro_batch)
                if self._has_row_ids:
                    batch["row_ids"] = torch.from_numpy(micro_batch.row_ids.astype(np.int64))
                if self.on_rows is not None:
                    self.on_rows(first_step + step, micro_batch.row_ids.tolist())
                self._step = first_step + step + (number == per_step)
                yield batch

    @property
    def dataset(self) -> "_FromEpochStart":
        """What `skip_first_batches` of Accelerate iterates over; it skips what the state has skipped already."""
        return _FromEpochStart(self)


def attach(trainer: Any, loader: RowLoader) -> None:
    """Let a Trainer of transformers or TRL train on the loader's rows, and keep the loader's state in its checkpoints.

    Call it before `trainer.train(...)`. The state is written with `trainer_state.json`, as one file.
    """
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    if trainer.args.ignore_data_skip:
        raise ConfigError("ignore_data_skip=True makes the Trainer forget how far its epoch is. Leave it out.")

    class AssayLoader(TrainerCallback, ExportableState):  # type: ignore[misc]
        step = 0

        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {"cursor": loader.state_dict(step=self.step)}}

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            if args.gradient_accumulation_steps != loader.micro_batches_per_step:
                raise ConfigError(
                    f"gradient_accumulation_steps={args.gradient_accumulation_steps}, and the loader has "
                    f"{loader.micro_batches_per_step} micro-batches per step on this rank. Use "
                    "gradient_accumulation_steps=loader.micro_batches_per_step."
                )
            if state.global_step:
                saved = state.stateful_callbacks.get(type(self).__name__)
                if saved is None:
                    raise DataError(
                        f"the checkpoint of step {state.global_step} was written without this loader, so its rows are "
                        "unknown. Begin again, or go on with the loader that it was written with."
                    )
                loader.load_state_dict({**saved["attributes"]["cursor"], "step": state.global_step})
            self.step = state.global_step

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            self.step = state.global_step

    trainer.get_train_dataloader = lambda: loader
    trainer.add_callback(AssayLoader())


def _folder_of(dataset: "str | Path | Dataset") -> Path:
    from assay.api.datasets import Dataset

    return (dataset if isinstance(dataset, Dataset) else Dataset(dataset)).folder


def _order_config(global_batch_size: int, order: Mapping[str, Any]) -> LoaderConfig:
    known = ("seed", "lanes", "window_rows", "shuffle_radius_windows", "layout", "prefetch_steps", "threads")
    if unknown := [name for name in order if name not in known]:
        likely = get_close_matches(unknown[0], (*known, *_OPTIONS), 1)
        meant = f" Perhaps you meant {likely[0]}." if likely else ""
        raise ConfigError(
            f"RowLoader has no option '{unknown[0]}'.{meant} Of a recipe's loader it takes {', '.join(known)}."
        )
    layout = order.get("layout", {})
    if isinstance(layout, Mapping) and layout.get("type") in ("packed", "line"):
        raise ConfigError(
            f"layout.type={layout['type']}: other loops count micro-batches, of which such steps have more or fewer. "
            "Use collate=packed, which puts the rows of a micro-batch into one line."
        )
    lanes = next(lanes for lanes in (8, 4, 2, 1) if global_batch_size % lanes == 0)
    values = {"lanes": lanes, **order, "global_batch_size": global_batch_size}
    return validated(LoaderConfig, LoadedConfig(values, {}))


class _FromEpochStart(IterableDataset[Batch | None]):
    """An epoch of a loader in which None stands for each micro-batch of the steps that are done."""

    def __init__(self, loader: RowLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Batch | None]:
        done = self._loader.state_dict()["step"] % self._loader.steps_per_epoch
        yield from [None] * (done * self._loader.micro_batches_per_step)
        yield from self._loader


class _Epoch(NamedTuple):
    """How the rows of an epoch, in their order, are cut into steps of at least one row a micro-batch.

    All steps have `size` rows, but a rest stays at the end. If it is at least half of a step, it is a step. If not, the
    last whole step and the rest are cut in the middle, so each has half of a step or more: enough for every
    micro-batch, of which none exceeds its size. Micro-batches of one row have no half, so the last step takes the rest
    and some of its micro-batches have two rows.
    """

    num_rows: int
    size: int
    """Rows of a step."""
    per_step: int
    """Micro-batches of a step, over all ranks."""

    @classmethod
    def of(cls, geometry: Geometry, per_step: int) -> "_Epoch":
        size = geometry.lanes * geometry.rows_per_lane
        if geometry.num_rows < per_step:
            raise ConfigError(
                f"the dataset has {geometry.num_rows} rows, fewer than the {per_step} micro-batches of a step. Lower "
                "global_batch_size, or raise micro_batch_size."
            )
        return cls(geometry.num_rows, size, per_step)

    @property
    def end(self) -> str:
        whole, rest = divmod(self.num_rows, self.size)
        if not rest or not whole:
            return "whole"
        if self.per_step == self.size:
            return "joined"
        return "whole" if 2 * rest >= self.size else "shared"

    @property
    def num_steps(self) -> int:
        whole, rest = divmod(self.num_rows, self.size)
        return whole if self.end == "joined" else whole + bool(rest)

    @property
    def num_regular(self) -> int:
        """The first steps, whose rows are `size` in each."""
        whole = self.num_rows // self.size
        return whole - (self.end != "whole")

    def start(self, step: int) -> int:
        """Return the position of a step's first row."""
        if step == self.num_steps:
            return self.num_rows
        if self.end == "shared" and step == self.num_steps - 1:
            return (self.start(step - 1) + self.num_rows + 1) // 2
        return step * self.size

    def micro_batch(self, step: int, index: int) -> tuple[int, int]:
        """Return the positions [start, stop) of a micro-batch."""
        start, count = self.start(step), self.start(step + 1) - self.start(step)
        return start + index * count // self.per_step, start + (index + 1) * count // self.per_step


class _Piece(NamedTuple):
    """Rows [start, stop) of a lane's share of a step of the order."""

    step: int
    lane: int
    start: int
    stop: int


def _pieces(geometry: Geometry, start: int, stop: int) -> list[_Piece]:
    """Return where the rows at positions [start, stop) are: steps of the order in turn, and the lanes of each."""
    pieces, size = [], geometry.lanes * geometry.rows_per_lane
    for step in range(start // size, -(-stop // size)):
        before = step * size
        for lane in range(geometry.lanes):
            after = before + geometry.rows_in_step(lane, step)
            if max(before, start) < min(after, stop):
                pieces.append(_Piece(step, lane, max(before, start) - before, min(after, stop) - before))
            before = after
    return pieces


def _micro_batches(
    loader: Loader, epoch_steps: _Epoch, epoch: int, first_step: int, own: range
) -> Iterator[tuple[int, Iterator[MicroBatch]]]:
    """Yield the steps of an epoch from `first_step` on, each with the micro-batches `own` of it.

    The last steps may have rows of other lanes than all steps before, and are read by themselves.
    """
    steps = range(first_step, epoch_steps.num_steps)
    regular, last = (
        steps[: max(0, epoch_steps.num_regular - first_step)],
        steps[max(0, epoch_steps.num_regular - first_step) :],
    )
    for part in (regular, last):
        if part:
            yield from _read_steps(loader, epoch_steps, epoch, part, own)


def _read_steps(
    loader: Loader, epoch_steps: _Epoch, epoch: int, steps: range, own: range
) -> Iterator[tuple[int, Iterator[MicroBatch]]]:
    geometry = loader.geometry

    def pieces_of(step: int) -> list[list[_Piece]]:
        return [_pieces(geometry, *epoch_steps.micro_batch(step, index)) for index in own]

    # All but the last steps have their rows in the same lanes.
    alike = steps[:1] if steps[-1] < epoch_steps.num_regular else steps
    needed = [piece for step in alike for pieces in pieces_of(step) for piece in pieces]
    lanes = sorted({piece.lane for piece in needed})
    first = min(piece.step for piece in needed)
    stop = -(-epoch_steps.start(steps[-1] + 1) // epoch_steps.size)
    shares = loader.shares(Cursor(epoch=epoch, step_in_epoch=first), lanes, stop - first)
    rows: dict[tuple[int, int], MicroBatch] = {}
    try:
        for step in steps:
            pieces = pieces_of(step)
            while not any(of_step == pieces[-1][-1].step for of_step, _ in rows):
                share = next(shares)
                for lane in share.lanes:
                    if lane.micro_batches:
                        rows[share.cursor.step_in_epoch, lane.lane] = lane.micro_batches[0]
            yield step, (_joined([(rows[piece[:2]], *piece[2:]) for piece in of_batch]) for of_batch in pieces)
            rows = {key: batch for key, batch in rows.items() if key[0] > pieces[-1][-1].step - 1}
    finally:
        shares.close()


def _joined(parts: Sequence[tuple[MicroBatch, int, int]]) -> MicroBatch:
    """Return rows [start, stop) of several micro-batches as one, padded to its own longest row."""
    (first, start, stop), *others = parts
    if not others and (start, stop) == (0, len(first.row_ids)):
        return first
    names, columns = list(first.ragged), list(first.columns)
    return MicroBatch(
        row_ids=np.concatenate([batch.row_ids[start:stop] for batch, start, stop in parts]),
        ragged={name: _joined_ragged([(b.ragged[name], start, stop) for b, start, stop in parts]) for name in names},
        columns={
            name: pa.concat_arrays([b.columns[name].slice(start, stop - start) for b, start, stop in parts])
            for name in columns
        },
    )


def _joined_ragged(parts: Sequence[tuple[Ragged, int, int]]) -> Ragged:
    lengths = np.concatenate([column.lengths[start:stop] for column, start, stop in parts])
    values = np.zeros((len(lengths), int(lengths.max(initial=0))), np.int64)
    row = 0
    for column, start, stop in parts:
        width = min(values.shape[1], column.values.shape[1])
        values[row : row + stop - start, :width] = column.values[start:stop, :width]
        row += stop - start
    return Ragged(values, lengths)
