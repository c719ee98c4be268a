"""The rows of a cluster's lanes: each lane is read from its own position."""

from collections import defaultdict
from collections.abc import Collection, Generator, Sequence
from contextlib import ExitStack, closing

from assay.data.loader.batch import LaneShare, StepShare
from assay.data.loader.loader import Loader
from assay.records.cursor import Cursor
from assay.training.outer.state import OuterState


def slots_of(lanes: Sequence[int], *, num_lanes: int, world_size: int) -> tuple[int, ...]:
    """Return the lanes of a cluster as the leaves of a sum's binary tree: as many as a power of two, and one a rank.

    Slots beyond the cluster's lanes have numbers beyond `num_lanes` and no rows.
    """
    size = 1 << (max(len(lanes), world_size) - 1).bit_length()
    return (*lanes, *range(num_lanes, num_lanes + size - len(lanes)))


class LaneRows:
    """Serves the inner steps of one outer step; see `training.trainer.trainer.StepRows`."""

    def __init__(self, loader: Loader, state: OuterState, num_done: int) -> None:
        """`num_done`: inner steps of this outer step that are done."""
        self._loader = loader
        self._state = state
        self._num_done = num_done

    def shares(
        self, cursor: Cursor, lanes: Sequence[int], num_steps: int, skipped: Collection[int] | None = None
    ) -> Generator[StepShare, None, None]:
        """Yield the shares of the next inner steps. A lane at its last step, or without rows, has no micro-batches."""
        assert skipped is None, "damaged rows end a run over several clusters"
        by_steps: dict[tuple[int, int], list[int]] = defaultdict(list)
        """(position, number of steps left) -> lanes: these can be read together."""
        for lane in lanes:
            if lane < len(self._state.positions):
                position, last = self._state.planned(lane)
                by_steps[position + self._num_done, min(num_steps, last - position - self._num_done)].append(lane)
        with ExitStack() as open_readers:
            readers = [
                open_readers.enter_context(closing(self._loader.shares(self._loader.cursor_at(first), group, count)))
                for (first, count), group in by_steps.items()
                if count > 0
            ]
            for _ in range(num_steps):
                found = {
                    share.lane: share
                    for reader in readers
                    for step in [next(reader, None)]
                    if step
                    for share in step.lanes
                }
                yield StepShare(cursor, tuple(found.get(lane) or LaneShare(lane, ()) for lane in lanes))
                cursor = self.next_cursor(cursor)

    def next_cursor(self, cursor: Cursor) -> Cursor:
        return self._loader.next_cursor(cursor)
