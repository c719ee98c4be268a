"""What a worker does beside training, one thing at a time: kinds of things, each with a desk.

A thing is worked at in chunks, under a lease, and its results are put only if absent. So whoever takes over
goes on behind the last chunk, and who was only slow adds nothing.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol


class DueThing(NamedTuple):
    """Something that is to be done."""

    thing_id: str
    project: str


class Desk(Protocol):
    """Where things of one kind are done."""

    kind: str
    """As ids begin."""

    def due(self) -> Iterator[DueThing]:
        """What is to be done, the oldest first; what is over is closed on the way."""
        ...

    def take(self, thing_id: str, lease: int, worker: str) -> bool:
        """Write down that a worker has it now; whether it has, or a later one."""
        ...

    def step(self, thing_id: str, lease: int) -> None:
        """Bring it one chunk further; `FencedError` where it is another's by now."""
        ...

    def let_go(self, thing_id: str) -> None:
        """Close what is open for it."""
        ...
