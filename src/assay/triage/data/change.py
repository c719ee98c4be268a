"""A change while it is looked for: the finding, and which rows it left alone."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.records.data_changes import DataChangeKind, DataFinding
from assay.triage.data.sizes import Size


class Strata(NamedTuple):
    """To which stratum each row belongs; rows of stratum -1 are those that changed, and in no comparison."""

    old: NDArray[np.int64]
    new: NDArray[np.int64]


class Change(NamedTuple):
    """A finding, and the strata within which the rest of the rows should be as before."""

    finding: DataFinding
    strata: Strata | None = None
    """None where it left no rows alone."""


def change(what: str, kind: DataChangeKind, size: Size, text: str, strata: Strata | None = None) -> Change:
    """With its size."""
    p_value = size.p_value if size.p_value >= 1e-300 else 0.0
    sizes: dict[str, Any] = {**size._asdict(), "p_value": p_value}
    return Change(DataFinding(what=what, kind=kind, says=text, **sizes), strata)


def without(old: NDArray[np.bool_], new: NDArray[np.bool_]) -> Strata:
    """All rows but these."""
    return Strata(-old.astype(np.int64), -new.astype(np.int64))
