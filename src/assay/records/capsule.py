"""A capsule: all that one step of a run needs to be run again, kept when the step failed.

The recipe, the row ids of each lane, and the commit to begin from, whose files are copied beside the capsule so
that retention cannot take them. The rows themselves stay in the dataset, which its fingerprint names.
"""

from typing import Any

from pydantic import NonNegativeInt, PositiveInt

from assay.records.commit import Commit
from assay.records.record import Record


class Capsule(Record):
    """One step, to be replayed."""

    run_id: str
    step: PositiveInt
    attempt: NonNegativeInt
    """In which it was made; 0 where nobody made it yet."""
    world_size: NonNegativeInt
    """World size of that attempt; no part of the numbers. 0 likewise."""
    reason: str
    """Why it was kept."""
    created_s: float
    recipe: dict[str, Any]
    recipe_sha256: str
    dataset_fingerprint: str
    code_version: str
    """That made the step."""
    commit: Commit | None
    """The one to begin from, `folder` being the copy; None begins with the starting weights."""
    rows: tuple[tuple[NonNegativeInt, ...], ...]
    """Ids of each lane's rows in the step."""
