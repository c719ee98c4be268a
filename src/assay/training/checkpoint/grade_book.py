"""Where in a run's store is kept what cannot be had twice: what others answered while a step was made."""

from typing import NamedTuple

from assay.store.objects import ObjectStore


class GradeBook(NamedTuple):
    """As one attempt writes it."""

    store: ObjectStore
    attempt: int
    is_read_only: bool = False
    """Steps are only made again (a replay): nobody is asked, and nothing is kept."""
