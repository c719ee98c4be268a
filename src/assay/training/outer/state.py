"""The state after an outer step: a fold of the log's entries, which every cluster computes for itself.

A lane's position is the number of its steps in parts that entries name. A lane without a part keeps its position, and
whoever has the lane in the next outer step trains it from there: so each row is trained once.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from assay.base.errors import DataError
from assay.records.outer import OuterBegan, OuterEntry, OuterPart, OuterStep

LanesOf = Mapping[str, tuple[int, ...]]
"""Cluster to its lanes."""


@dataclass(frozen=True)
class OuterState:
    """Positions of all lanes and their clusters, after some outer step."""

    outer_step: int
    """Outer steps taken."""
    inner_steps: int
    """Inner steps between two outer steps."""
    lane_steps: int
    """Steps of every lane in the whole run."""
    positions: tuple[int, ...]
    """[lane]: its steps so far."""
    lanes: LanesOf
    """Cluster to its lanes in the next outer step."""
    absent: Mapping[str, int]
    """Cluster to the number of outer steps in a row without a part of it."""

    @classmethod
    def after_entries(cls, entries: Sequence[OuterEntry]) -> Self:
        """Return the state after all of `entries`. Raises `DataError` if a lane's steps have a gap or a repeat."""
        began = entries[0]
        if not isinstance(began, OuterBegan):
            raise DataError("outer/00000000.json does not begin a run: the log of outer steps was changed. Restore it.")
        positions = (0,) * sum(map(len, began.lanes.values()))
        state = cls(0, began.inner_steps, began.lane_steps, positions, began.lanes, {})
        for entry in entries[1:]:
            state = state.after(entry)
        return state

    def after(self, entry: OuterEntry) -> Self:
        """Return the state after the next outer step."""
        where = f"outer/{self.outer_step + 1:08d}.json"
        if not isinstance(entry, OuterStep) or entry.outer_step != self.outer_step + 1:
            raise DataError(f"{where}: it is not outer step {self.outer_step + 1}. Restore the log of outer steps.")
        positions = list(self.positions)
        for part in entry.parts:
            if tuple(steps.lane for steps in part.lanes) != self.lanes.get(part.cluster):
                raise DataError(f"{where}: the lanes of cluster '{part.cluster}' are those of another cluster or step.")
            for steps in part.lanes:
                # A lane that the entry names twice has another position the second time.
                if (steps.from_step, steps.to_step) != (positions[steps.lane], self.planned(steps.lane)[1]):
                    raise DataError(
                        f"{where}: cluster '{part.cluster}' trained steps {steps.from_step} to {steps.to_step} of lane "
                        f"{steps.lane}, which stands at {positions[steps.lane]} of {self.lane_steps}: rows would be "
                        "skipped or repeated. No cluster of this release writes that. Restore the log of outer steps."
                    )
                positions[steps.lane] = steps.to_step
        return replace(
            self,
            outer_step=entry.outer_step,
            positions=tuple(positions),
            lanes=entry.lanes,
            absent=entry.absent,
        )

    def planned(self, lane: int) -> tuple[int, int]:
        """Return a lane's position before and after the inner steps of the next outer step."""
        return self.positions[lane], min(self.positions[lane] + self.inner_steps, self.lane_steps)

    @property
    def is_done(self) -> bool:
        """Return whether every lane is at its last step."""
        return min(self.positions) == self.lane_steps

    @property
    def schedule_step(self) -> int:
        """Steps of the learning rate's schedule so far: the mean position of all lanes. It is the same in all
        clusters, and does not advance for lanes without a part."""
        return sum(self.positions) // len(self.positions)

    def unfinished(self, lanes: Collection[int]) -> list[int]:
        """Return those of the lanes that have steps left."""
        return [lane for lane in lanes if self.positions[lane] < self.lane_steps]

    def expected(self) -> list[str]:
        """Return the clusters that have steps left in the next outer step, by name."""
        return sorted(cluster for cluster, lanes in self.lanes.items() if self.unfinished(lanes))

    def next_entry(
        self, parts: Sequence[OuterPart], workers: Mapping[str, int], requests: Collection[str], *, absent_after: int
    ) -> OuterStep:
        """Return the next entry.

        `workers`: each known cluster's world size. `requests`: clusters without lanes that request some; they get none
        if there are fewer lanes than workers. A cluster that was absent `absent_after` times loses its lanes.
        """
        named = {part.cluster for part in parts}
        absent = {cluster: self.absent.get(cluster, 0) + 1 for cluster in self.expected() if cluster not in named}
        entry = OuterStep(
            outer_step=self.outer_step + 1,
            parts=tuple(sorted(parts, key=lambda part: part.cluster)),
            lanes=dict(self.lanes),
            absent=absent,
        )
        after = self.after(entry)
        owners = {cluster for cluster, lanes in self.lanes.items() if lanes}
        members = {cluster for cluster in owners if absent.get(cluster, 0) < absent_after}
        if sum(workers[cluster] for cluster in {*members, *requests}) <= len(self.positions):
            members |= {*requests}
        has_idle = bool(members - {*after.expected()})
        could_share = any(len(after.unfinished(lanes)) > 1 for lanes in self.lanes.values())
        if not members or (members == owners and not (has_idle and could_share)):
            return entry
        lanes = after.shared({cluster: workers[cluster] for cluster in members})
        return entry.model_copy(update={"lanes": lanes})

    def shared(self, workers: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Divide all lanes in proportion to the clusters' world sizes, those with steps left first.

        Each cluster gets at least a lane for each worker if there are that many: a lane at its end keeps its worker
        idle, but in place.
        """
        left = self.unfinished(range(len(self.positions)))
        lanes = {cluster: list(of_cluster) for cluster, of_cluster in divided(left, workers).items()}
        for lane in sorted({*range(len(self.positions))} - {*left}):
            lanes[max(sorted(lanes), key=lambda cluster: workers[cluster] - len(lanes[cluster]))].append(lane)
        return {cluster: tuple(sorted(of_cluster)) for cluster, of_cluster in lanes.items()}


def divided(lanes: Sequence[int], workers: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Divide lanes among clusters in proportion to their world sizes: contiguous, by name, largest remainders first."""
    names, total = sorted(workers), sum(workers.values())
    shares = {name: len(lanes) * workers[name] / total for name in names}
    counts = {name: int(shares[name]) for name in names}
    by_remainder = sorted(names, key=lambda name: (counts[name] - shares[name], name))
    for name in by_remainder[: len(lanes) - sum(counts.values())]:
        counts[name] += 1
    found, start = {}, 0
    for name in names:
        found[name] = tuple(lanes[start : start + counts[name]])
        start += counts[name]
    return found
