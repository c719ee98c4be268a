"""Yields batches of NumPy arrays for some lanes, from any cursor of the global order.

    shares(cursor, lanes):  windows of the lanes, read ahead by threads --> each step's micro-batches --> queue

The loader has no state to lose: for the same cursor and lanes it yields the same arrays, whatever the number of
threads and whatever was read before. The caller keeps the cursor.
"""

import queue
import threading
from collections import deque
from collections.abc import Collection, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import islice

import numpy as np

from assay.base.errors import ConfigError, DamagedDataError, DataError
from assay.base.seeds import derive_key
from assay.base.shapes import Int64
from assay.data.dataset.columns import sequences_of
from assay.data.loader.batch import LaneShare, StepShare
from assay.data.loader.config import LineLayout, LoaderConfig, PackedLayout, PaddedLayout
from assay.data.loader.layouts import Arrangement, Lengths, Present, RowIds, WindowKeys, arrange
from assay.data.loader.line import LineShape
from assay.data.loader.order import EpochOrder, Geometry, Span, WindowIndex
from assay.data.loader.receipts import Receipt, receipt
from assay.data.loader.windows import LaneWindows, RowSource, SharedGroups, Window, WindowRows
from assay.records.cursor import Cursor

CLOSE_POLL_S = 0.05
"""Poll interval at which a blocked prefetch thread notices that its consumer has stopped."""


class Loader:
    """Serves the rows of a source in the configured order."""

    def __init__(self, source: RowSource, config: LoaderConfig, columns: Sequence[str]) -> None:
        self.config = config
        self._source = source
        self._columns = tuple(columns)
        # Every row has the same number of sequences: one, or two for preference pairs.
        self._num_sequences = len(sequences_of(columns))
        if self._num_sequences > 1 and isinstance(config.layout, PackedLayout):
            raise ConfigError(
                "loader.layout: preference pairs cannot be packed, because a pair's two sequences must stay together. "
                "Use loader.layout.type=bucketed."
            )
        self._geometry = Geometry(
            num_rows=int(source.num_rows.sum()),
            lanes=config.lanes,
            rows_per_lane=config.rows_per_lane,
            window_steps=config.window_steps,
            shuffle_radius=config.shuffle_radius_windows,
        )
        if self._geometry.num_rows == 0:
            raise DataError(f"dataset {source.fingerprint[:12]}…: no row is selected. Check data.split.")
        self._orders = lru_cache(maxsize=2)(
            lambda epoch: EpochOrder(source.identities, source.num_rows, seed=config.seed, epoch=epoch)
        )
        # Enough for all segments that a window shares with its neighbours, when lanes are visited in turn.
        num_cached = config.lanes * (self._geometry.num_slices + 1)
        self._segments = lru_cache(maxsize=num_cached)(self._rows_by_slice)

    @property
    def geometry(self) -> Geometry:
        return self._geometry

    @property
    def steps_per_epoch(self) -> int:
        return self._geometry.steps_per_epoch

    def next_cursor(self, cursor: Cursor) -> Cursor:
        return self.cursor_at(cursor.epoch * self.steps_per_epoch + cursor.step_in_epoch + 1)

    def cursor_at(self, step: int) -> Cursor:
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        return Cursor(epoch=epoch, step_in_epoch=step_in_epoch)

    def rows_in_step(self, step_in_epoch: int) -> int | None:
        """Return the rows of a step over all lanes, damaged ones included; None if packed or in lines, where
        it depends on row lengths."""
        if isinstance(self.config.layout, PackedLayout | LineLayout):
            return None
        return sum(self._geometry.rows_in_step(lane, step_in_epoch) for lane in range(self.config.lanes))

    def shares(
        self, cursor: Cursor, lanes: Sequence[int], num_steps: int, skipped: Collection[int] | None = None
    ) -> Generator[StepShare, None, None]:
        """Yield the lanes' shares of `num_steps` steps from `cursor` on, across epochs.

        Nothing beyond these steps is read. Close the iterator to stop its threads early. A `DamagedDataError` is
        raised at the first step of the window that needs the damaged rows.

        When resuming inside a window, `skipped` are the row groups that its earlier steps were built without.
        Which rows a step has depends on the lengths of all rows in the window, so the remaining steps skip the
        same row groups, and further damage in the window is an error.
        """
        if isinstance(self.config.layout, PaddedLayout):
            skipped = None  # in this layout a row's step does not depend on other rows
        steps = _Steps(self, cursor, lanes, num_steps, skipped)
        if self.config.prefetch_steps == 0:
            return steps.shares()
        return _prefetched(steps, self.config.prefetch_steps)

    def order(self, epoch: int) -> EpochOrder:
        return self._orders(epoch)

    def spans(self, index: WindowIndex, lane: int) -> list[Span]:
        return self.order(index.epoch).spans(*self._geometry.window_range(lane, index.window))

    def rows_of_window(self, epoch: int, lane: int, window: int) -> RowIds:
        """Return the ids of all rows of a window, slice by slice; reads no data."""
        slices = self._geometry.slices_of_window(window)
        ids = [self._segments(WindowIndex(epoch, segment), lane)[number] for segment, number in slices]
        return np.concatenate(ids)

    def _rows_by_slice(self, index: WindowIndex, lane: int) -> list[RowIds]:
        ids = [self._source.row_ids(span.group)[span.first : span.stop] for span in self.spans(index, lane)]
        rows = np.concatenate(ids) if ids else np.zeros(0, np.uint64)
        numbers = self.slice_indices(index, lane)
        return [rows[numbers == number] for number in range(self._geometry.num_slices)]

    def slice_indices(self, index: WindowIndex, lane: int) -> Int64[np.ndarray, "row"]:
        start, stop = self._geometry.window_range(lane, index.window)
        if index.window >= self._geometry.num_whole:
            return np.zeros(stop - start, np.int64)
        positions = np.arange(stop - start, dtype=np.int64)
        return self._geometry.slice_indices(np.full_like(positions, start), positions, self._slices_key(index.epoch))

    def windows_at(self, epoch: int, positions: Int64[np.ndarray, "row"]) -> Int64[np.ndarray, "row"]:
        return self._geometry.windows_at(positions, self._slices_key(epoch))

    def _slices_key(self, epoch: int) -> int:
        return derive_key(self.config.seed, "portions", epoch)

    def rows_of_steps(self, epoch: int, lane: int, window: int) -> list[RowIds] | None:
        """Return the row ids of each step of a window, damaged rows included; None if the layout depends on
        row lengths."""
        if not isinstance(self.config.layout, PaddedLayout):
            return None
        rows = self.rows_of_window(epoch, lane, window)
        lengths, present = np.ones(len(rows), np.int32), np.ones(len(rows), bool)
        order, steps = self.arrange(rows, lengths, present, WindowIndex(epoch, window), lane)
        return [rows[[i for piece in pieces for i in order[piece.start : piece.stop]]] for pieces in steps]

    def expected_receipt(self, epoch: int, lane: int, window: int) -> Receipt:
        return receipt(self.rows_of_window(epoch, lane, window))

    def lane_windows(self, lanes: Sequence[int]) -> dict[int, LaneWindows]:
        groups = SharedGroups(self._source, self._columns, quarantines=self.config.on_damage == "quarantine")
        return {
            lane: LaneWindows(
                groups, self._geometry, partial(self.spans, lane=lane), partial(self.slice_indices, lane=lane)
            )
            for lane in lanes
        }

    def read_window(
        self, windows: LaneWindows, index: WindowIndex, lane: int, skipped: Collection[int] | None = None
    ) -> Window:
        """Read, decode and arrange a lane's window; for `skipped` see `shares`."""
        rows = windows.read(index, skipped or ())
        if skipped is not None:
            _check_no_new_damage(rows, skipped)
        layout = self.config.layout
        lengths, sequence_tokens = self.lengths(rows), None
        if isinstance(layout, PackedLayout):
            sequence_tokens = layout.sequence_tokens
            _check_row_lengths(rows, lengths, sequence_tokens, "sequence_tokens")
        if isinstance(layout, LineLayout):
            _check_row_lengths(rows, rows.lengths, layout.longest_row, "row_tokens" if layout.row_tokens else "tokens")
            _check_row_lengths(rows, lengths, layout.tokens, "tokens")
        arrangement = self.arrange(rows.row_ids, lengths, rows.present, index, lane)
        return Window(rows, arrangement, sequence_tokens=sequence_tokens, line=self.line)

    def lengths(self, rows: WindowRows) -> Lengths:
        """Return the lengths by which rows are arranged: a line holds both sequences of a pair."""
        return rows.lengths if self.line is None else rows.total_lengths

    @cached_property
    def line(self) -> LineShape | None:
        """The shape of micro-batches that are lines. A line holds at most twice the rows that a lane has per step, so
        that few lines end early."""
        layout, num_sequences = self.config.layout, max(1, self._num_sequences)
        if not isinstance(layout, LineLayout):
            return None
        rows = min(2 * self.config.rows_per_lane, layout.tokens // num_sequences)
        return LineShape(layout.tokens, rows, layout.longest_row, num_sequences)

    def arrange(
        self, row_ids: RowIds, lengths: Lengths, present: Present, index: WindowIndex, lane: int
    ) -> Arrangement:
        budget = self.config.max_micro_batch_tokens
        return arrange(
            row_ids,
            lengths,
            present,
            self.config.layout,
            WindowKeys(self.config.seed, index.epoch, index.window),
            step_rows=self._geometry.step_rows(lane, index.window),
            max_tokens=None if budget is None else budget // self._num_sequences,
            max_rows=None if self.line is None else self.line.rows,
        )


def with_lookahead(shares: Iterator[StepShare], num_steps: int) -> Iterator[StepShare]:
    """Yield each share together with the lanes of the next `num_steps` shares."""
    window = deque(islice(shares, num_steps + 1))
    while window:
        share = window.popleft()
        yield replace(share, upcoming=tuple(later.lanes for later in window)) if window else share
        window.extend(islice(shares, 1))


class _Steps:
    """One pass from a cursor on. Holds one window of each lane and reads the next one in the background."""

    def __init__(
        self, loader: Loader, cursor: Cursor, lanes: Sequence[int], num_steps: int, skipped: Collection[int] | None
    ) -> None:
        self._loader = loader
        self._skipped = skipped
        self._cursor = cursor
        self._num_steps = num_steps
        self._lanes = lanes
        self._windows = loader.lane_windows(lanes)

    def shares(self) -> Generator[StepShare, None, None]:
        pool = ThreadPoolExecutor(self._loader.config.threads, thread_name_prefix="loader")
        try:
            yield from self._shares(pool)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _shares(self, pool: ThreadPoolExecutor) -> Generator[StepShare, None, None]:
        geometry = self._loader.geometry
        cursor, remaining = self._cursor, self._num_steps
        ahead: dict[int, Future[Window]] = {}
        while remaining:
            index = WindowIndex(cursor.epoch, cursor.step_in_epoch // geometry.window_steps)
            ahead = ahead or self._submit(pool, index, self._skipped)
            windows = {lane: future.result() for lane, future in ahead.items()}
            first = cursor.step_in_epoch - index.window * geometry.window_steps
            stop = min(geometry.steps_in_window(index.window), first + remaining)
            remaining -= stop - first
            is_last = index.window + 1 == geometry.num_windows
            next_index = WindowIndex(index.epoch + 1, 0) if is_last else WindowIndex(index.epoch, index.window + 1)
            ahead = self._submit(pool, next_index) if remaining else {}
            before = index.window * geometry.window_steps
            for step in range(first, stop):
                cursor = Cursor(epoch=index.epoch, step_in_epoch=before + step)
                yield StepShare(cursor, tuple(_lane_share(lane, windows[lane], step) for lane in self._lanes))
            cursor = self._loader.next_cursor(cursor)

    def _submit(
        self, pool: ThreadPoolExecutor, index: WindowIndex, skipped: Collection[int] | None = None
    ) -> dict[int, Future[Window]]:
        return {
            lane: pool.submit(self._loader.read_window, self._windows[lane], index, lane, skipped)
            for lane in self._lanes
        }


def _lane_share(lane: int, window: Window, step: int) -> LaneShare:
    return LaneShare(lane, window.micro_batches(step), window.quarantined)


def _prefetched(steps: _Steps, depth: int) -> Generator[StepShare, None, None]:
    """Yield the shares of `steps`, produced by a thread that is at most `depth` steps ahead."""
    ready: queue.Queue[StepShare | BaseException | None] = queue.Queue(depth)
    stopped = threading.Event()

    def put(item: StepShare | BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=CLOSE_POLL_S)
            except queue.Full:
                continue
            return True
        return False

    def fill() -> None:
        shares = steps.shares()
        try:
            for share in shares:
                if not put(share):
                    return
            put(None)
        except BaseException as error:
            put(error)
        finally:
            shares.close()

    thread = threading.Thread(target=fill, name="loader-steps", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()


def _check_no_new_damage(rows: WindowRows, skipped: Collection[int]) -> None:
    for damaged in rows.quarantined:
        if damaged.row_group not in skipped:
            raise DamagedDataError(
                f"{damaged.shard}: row group {damaged.row_group} of the dataset was damaged after some steps of "
                "its window were trained. The rows of the remaining steps depend on the lengths of all rows in the "
                "window (loader.layout), so rows would be skipped or repeated. Restore the file, or train the "
                f"recipe again under another --run-id. ({damaged.reason})"
            )


def _check_row_lengths(rows: WindowRows, lengths: Lengths, most: int, key: str) -> None:
    longest = int(lengths.max(initial=0))
    if longest > most:
        row = int(rows.row_ids[int(lengths.argmax())])
        raise DataError(
            f"row {row} has {longest} tokens and loader.layout.{key} is {most}: rows are "
            f"never cut. Raise {key}, or build the dataset with shorter rows."
        )
