"""Makes the state of a run durable while training continues.

    training thread        copy the parts (weights, moments, ...) to memory ---> next steps ...
    saving thread, each rank             write its files (DCP), hash them
    saving thread, rank 0                gather digests and receipts, then append the commit to the log

The commit's entry in the log is written last, so a crash leaves either the whole commit or none. Saves do not overlap:
the next one waits for the last.
"""

import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from assay.base.clock import Clock
from assay.base.digest import sha256_of_bytes, sha256_of_parts
from assay.base.errors import StoreError
from assay.base.shapes import Shaped
from assay.base.units import duration_text
from assay.data.loader.batch import LaneShare
from assay.data.loader.receipts import NO_ROWS, Receipt, receipt
from assay.distributed.ranks import Ranks
from assay.records.commit import Commit, FileDigest, Quarantined
from assay.records.cursor import Cursor
from assay.records.rollout_log import GroupRecord
from assay.store.commit_log import RECEIPTS_NAME, ROLLOUT_LOG_NAME, CommitLog, checkpoint_folder, first_problem
from assay.training.checkpoint.parts import MODEL, ROLLOUTS, StatefulPart
from assay.training.checkpoint.retention import RetentionConfig, commit_and_retire
from assay.training.checkpoint.rollout_log import counted, rollout_log_file, rollout_log_table
from assay.training.checkpoint.store_files import StoreWriter, cause_of, read_commit

SLOW_SHARE = 0.1
"""Warn if waiting for the last commit takes more than this share of the time since its start."""


@dataclass
class LaneReceipts:
    """Receipts of a rank's lanes for the steps since the last commit."""

    rows: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(step, lane, number of rows, digest)."""
    quarantined: list[Quarantined] = field(default_factory=list)
    rollout_log: list[pa.Table] = field(default_factory=list)
    """A table for each step, if rows are prompts (`rollout_log_table`)."""

    def add(self, lane: LaneShare, *, step: int) -> None:
        """Add the dataset rows of one lane in one step."""
        rows = reduce(Receipt.plus, (receipt(batch.row_ids) for batch in lane.micro_batches), NO_ROWS)
        self.rows.append((step, lane.lane, *rows))
        self.quarantined.extend(lane.quarantined)

    def add_log(self, groups: Sequence[GroupRecord]) -> None:
        """Add the log of one step's samples."""
        self.rollout_log.append(rollout_log_table(groups))


class _StateCopies:
    """Copies a state to the host's memory, from a GPU on a stream of its own while the next step computes."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._pinned: list[Shaped[Tensor, "..."]] = []
        """Memory of the last copies, by their order in the state; the next ones reuse it."""
        self._is_copied: torch.cuda.Event | None = None

    def copy(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state with copies of its tensors, which are complete after `wait`."""
        if self._stream is None:
            return tree_map_only(Tensor, lambda tensor: tensor.detach().to("cpu", copy=True), state)  # type: ignore[no-any-return]
        unused = iter(self._pinned)
        self._pinned = []
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            copied: dict[str, Any] = tree_map_only(Tensor, lambda tensor: self._copied(tensor.detach(), unused), state)
            self._is_copied = self._stream.record_event()
        return copied

    def _copied(self, tensor: Shaped[Tensor, "..."], unused: Iterator[Shaped[Tensor, "..."]]) -> Shaped[Tensor, "..."]:
        if self._stream is None or not tensor.is_cuda or isinstance(tensor, DTensor):
            return tensor.to("cpu", copy=True)
        pinned = next(unused, None)
        if pinned is None or (pinned.shape, pinned.dtype) != (tensor.shape, tensor.dtype):
            pinned = torch.empty_like(tensor, device="cpu", pin_memory=True)
        # A part may have made the tensor for this call: its memory must not be reused before it is copied.
        tensor.record_stream(self._stream)
        self._pinned.append(pinned.copy_(tensor, non_blocking=True))
        return pinned

    def before_update(self) -> None:
        """Order all later work of the current stream after the copies."""
        if self._is_copied is not None:
            self._is_copied.wait()

    def wait(self) -> None:
        """Wait on the host for the copies."""
        if self._is_copied is not None:
            self._is_copied.synchronize()


class Saver:
    """Saves and restores one run's state; all ranks call the same methods in the same order."""

    def __init__(
        self,
        parts: Mapping[str, StatefulPart],
        ranks: Ranks,
        log: CommitLog,
        retention: RetentionConfig,
        clock: Clock,
        awaited: Callable[[Sequence[Commit]], Sequence[str]] = lambda commits: (),
        *,
        retire: Callable[[str], bool] = lambda folder: True,
        higher_is_better: bool = True,
        verify_every: int = 0,
        warn: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ) -> None:
        """`parts`: by the names that they have in every commit of the run; one is the model.

        `awaited` says which of the commits' folders must not be retired yet, whatever `retention` says, and
        `retire` whether one may (see `commit_and_retire`);
        `higher_is_better` is of the metric that commits are given. The first commit and then one in
        `verify_every` is read back before it becomes visible; 0: none. `warn` hears of a slow store."""
        self._awaited = awaited
        self._retire = retire
        self._higher_is_better = higher_is_better
        self._parts = parts
        self._ranks = ranks
        self._log = log
        self._retention = retention
        self._clock = clock
        self._verify_every = verify_every
        self._warn = warn
        self._copies = _StateCopies(ranks.device)
        self._num_saved = 0
        self._step = 0
        self._began_s: float | None = None
        self._has_warned = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="saving")
        self._under_way: Future[Commit | None] | None = None
        self.weights_digest = ""
        """Digest of the newest commit; known on rank 0 only."""

    def begin(
        self,
        *,
        step: int,
        cursor: Cursor,
        from_step: int,
        receipts: LaneReceipts,
        metric: float | None = None,
        is_verified: bool = False,
    ) -> None:
        """Copy the state now and make it durable in the background."""
        requested_s = self._clock.monotonic_s()
        self.wait()
        self._notice_waiting(requested_s)
        commit = partial(
            Commit,
            attempt=self._log.attempt,
            world_size=self._ranks.world_size,
            step=step,
            cursor=cursor,
            receipts_from_step=from_step,
            metric=metric,
            is_verified=is_verified,
        )
        folder = checkpoint_folder(step, self._log.attempt)
        copied = self._copies.copy(self._state())
        self._step = step
        self._under_way = self._thread.submit(self._save, copied, receipts, folder, commit)

    def before_update(self) -> None:
        """Make the device finish the copies of the last commit before the weights change; the host does not wait."""
        self._copies.before_update()

    def wait(self) -> None:
        """Wait until no save is in progress; raise the error of the last one."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            try:
                under_way.result()
            except StoreError as error:
                raise type(error)(f"the commit of step {self._step} was not made: {error}") from error

    def raise_failed(self) -> None:
        """Raise the error of a finished save; steps after a failed commit are lost."""
        if self._under_way is not None and self._under_way.done() and self._under_way.exception() is not None:
            self.wait()

    def restore(self, commit: Commit) -> None:
        """Load a commit into the parts in place, at any world size."""
        restored = {name: part for name, part in self._parts.items() if name != ROLLOUTS or not commit.is_inherited}
        state = {name: part.state() for name, part in restored.items()}
        read_commit(state, self._log.store, commit, self._ranks.saving)
        for name, part in restored.items():
            part.restore(state[name])

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def _notice_waiting(self, requested_s: float) -> None:
        """Warn once if a commit is not written when the next one is due."""
        now_s = self._clock.monotonic_s()
        if self._began_s is not None and now_s - requested_s > max(1.0, SLOW_SHARE * (now_s - self._began_s)):
            if self._ranks.rank == 0 and not self._has_warned:
                self._warn(
                    f"{self._log.store.url} is too slow: a commit took {duration_text(now_s - self._began_s)}, "
                    f"the next was due after {duration_text(requested_s - self._began_s)}, and training waited. "
                    "Commit less often (trainer.commit_every), or use a faster store."
                )
            self._has_warned = True
        self._began_s = now_s

    def _state(self) -> dict[str, Any]:
        return {name: part.state() for name, part in self._parts.items()}

    def _save(
        self, state: dict[str, Any], receipts: LaneReceipts, folder: str, committed: Callable[..., Commit]
    ) -> Commit | None:
        """Write the files; `committed` builds the commit from what is only known afterwards."""
        self._copies.wait()
        writer = StoreWriter(self._log.store, folder)
        try:
            save(state, storage_writer=writer, process_group=self._ranks.saving)
        except CheckpointException as error:
            raise cause_of(error) from error
        parts: list[Any] | None = [None] * self._ranks.world_size if self._ranks.rank == 0 else None
        digest = weights_digest(state[MODEL], self._ranks.saving) if self._hashes(state) else ""
        dist.gather_object((writer.files.written, receipts), parts, group=self._ranks.saving)
        if parts is None:
            return None
        files = [file for written, _ in parts for file in written]
        lane_receipts = [part for _, part in parts]
        files += self._put_accounts(folder, lane_receipts)
        rollout_log = [table for part in lane_receipts for table in part.rollout_log]
        self.weights_digest = digest
        quarantined = {item.row_group: item for part in lane_receipts for item in part.quarantined}
        commit = committed(
            committed_s=self._clock.now_s(),
            folder=folder,
            files=tuple(sorted(files, key=lambda file: file.path)),
            weights_digest=self.weights_digest,
            rows_trained=sum(num_rows for part in lane_receipts for _, _, num_rows, _ in part.rows),
            prompts=counted(rollout_log) if rollout_log else None,
            quarantined=tuple(quarantined[index] for index in sorted(quarantined)),
        )
        self._verify(commit)
        commit = commit_and_retire(
            self._log,
            commit,
            self._retention,
            higher_is_better=self._higher_is_better,
            awaited=self._awaited,
            retire=self._retire,
        )
        if rollout_log:
            self._log.sweep_pending(commit.step)
        return commit

    def _verify(self, commit: Commit) -> None:
        """Read some commits back before they become visible."""
        is_due = self._verify_every > 0 and self._num_saved % self._verify_every == 0
        self._num_saved += 1
        if is_due and (problem := first_problem(self._log.store, commit)) is not None:
            raise StoreError(
                f"{self._log.store.url}: a commit reads back differently than it was written: {problem}. "
                "The step was not committed. The store or the connection corrupts data: have it repaired."
            )

    def _hashes(self, state: dict[str, Any]) -> bool:
        """Return whether this rank hashes weights: rank 0 has whole tensors; sharded ones take all ranks."""
        return self._ranks.rank == 0 or any(isinstance(tensor, DTensor) for tensor in state[MODEL].values())

    def _put_accounts(self, folder: str, parts: list[LaneReceipts]) -> list[FileDigest]:
        """Store receipts and rollout log, which the audit reads."""
        accounts = {RECEIPTS_NAME: self._receipts(parts)}
        if rollout_log := [table for part in parts for table in part.rollout_log]:
            accounts[ROLLOUT_LOG_NAME] = rollout_log_file(rollout_log)
        for name, data in accounts.items():
            self._log.store.put(f"{folder}/{name}", data)
        return [
            FileDigest(path=name, num_bytes=len(data), sha256=sha256_of_bytes(data)) for name, data in accounts.items()
        ]

    @staticmethod
    def _receipts(parts: list[LaneReceipts]) -> bytes:
        columns = [("step", np.int64), ("lane", np.int32), ("num_rows", np.int32), ("digest", np.uint64)]
        table = np.array(sorted(row for part in parts for row in part.rows), np.dtype(columns))
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **{name: table[name] for name, _ in columns})
        return buffer.getvalue()


def weights_digest(model_state: Mapping[str, Any], saving: dist.ProcessGroup | None = None) -> str:
    """Return the SHA-256 over names and bytes of a model's tensors, in the order of the names; on rank 0.

    Of sharded tensors, rank 0 hashes the shards in order; then all ranks call this together, and `saving` is needed.
    """

    def parts() -> Iterator[Any]:
        for name in sorted(model_state):
            tensor: Tensor = model_state[name]
            yield f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode()
            for shard in _shards(tensor, saving):
                yield shard.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data

    return sha256_of_parts(parts())


def _shards(tensor: Shaped[Tensor, "..."], saving: dist.ProcessGroup | None) -> Iterator[Shaped[Tensor, "..."]]:
    """Yield all shards of a tensor on rank 0, in order; on other ranks, the values are unused."""
    if not isinstance(tensor, DTensor):
        yield tensor
        return
    local = tensor.to_local().contiguous()
    rank, world_size = dist.get_rank(saving), dist.get_world_size(saving)
    rows_per_shard = -(-tensor.shape[0] // world_size)
    for owner in range(world_size):
        num_rows = max(0, min(rows_per_shard, tensor.shape[0] - owner * rows_per_shard))
        if owner == rank or not num_rows:
            shard = local[:num_rows]
        elif rank == 0:
            shard = local.new_empty(num_rows, *tensor.shape[1:])
            dist.recv(shard, group_src=owner, group=saving)
        else:
            continue
        if rank == owner != 0 and num_rows:
            dist.send(shard, group_dst=0, group=saving)
        yield shard
