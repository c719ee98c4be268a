"""Selects attempts by factor values."""

from collections.abc import Sequence

import numpy as np

from assay.base.errors import ConfigError
from assay.base.shapes import Bool
from assay.triage.attempts.table import AttemptTable


def with_values(table: AttemptTable, selected: Sequence[tuple[str, str]]) -> AttemptTable:
    """Return the attempts that have all values. Raises `ConfigError` for a value that no attempt has."""
    return table.where(having(table, selected))


def having(table: AttemptTable, selected: Sequence[tuple[str, str]]) -> Bool[np.ndarray, "row"]:
    """Return which attempts have all values. Raises `ConfigError` for a value that no attempt has."""
    mask = np.ones(table.num_rows, bool)
    factors = {factor.name: factor for factor in table.factors}
    for name, value in selected:
        factor = factors[name]
        if value not in factor.values:
            raise ConfigError(f"--where {name}={value}: no attempt has it.")
        mask &= np.isin(np.arange(table.num_rows), factor.rows[factor.codes == factor.values.index(value)])
    return mask
