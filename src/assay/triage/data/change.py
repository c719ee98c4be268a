"""A candidate change with the rows that it left unchanged."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.records.data_changes import DataChangeKind, DataFinding
from assay.triage.data.sizes import Size


class Strata(NamedTuple):
    """The stratum of each row; stratum -1 marks changed rows, which are excluded from further comparisons."""

    old: NDArray[np.int64]
    new: NDArray[np.int64]


class Change(NamedTuple):
    """A finding, and the strata within which the other rows should be unchanged."""

    finding: DataFinding
    strata: Strata | None = None
    """None if it changed every row."""


def change(what: str, kind: DataChangeKind, size: Size, text: str, strata: Strata | None = None) -> Change:
    """Build a change with its size."""
    p_value = size.p_value if size.p_value >= 1e-300 else 0.0
    sizes: dict[str, Any] = {**size._asdict(), "p_value": p_value}
    return Change(DataFinding(what=what, kind=kind, description=text, **sizes), strata)


def without(old: NDArray[np.bool_], new: NDArray[np.bool_]) -> Strata:
    """Return strata that exclude the flagged rows."""
    return Strata(-old.astype(np.int64), -new.astype(np.int64))
