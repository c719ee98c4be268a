"""A model that left: which run's weights a folder holds, by which recipe and data they came to be, file by
file."""

from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from assay.records.commit import FileDigest
from assay.records.record import Record

EXPORT_FILE = "assay.json"
"""Beside the weights."""
ModelForm = Literal["classifier", "language_model", "reward_model"]


class ExportedModel(Record):
    """Result of `assay export`."""

    run_id: str
    step: NonNegativeInt
    weights_digest: str
    recipe: dict[str, Any]
    recipe_sha256: str
    dataset: str
    """Its name."""
    dataset_fingerprint: str
    columns: dict[str, str]
    """Extra input columns and their Arrow types."""
    tokenizer_sha256: str
    is_tokenizer_proved: bool
    """The dataset's manifest names this tokenizer."""
    max_tokens: PositiveInt
    """Length of the longest training row; a classifier truncates longer texts."""
    code_version: str
    exported_by: str
    """Version of assay."""
    exported_s: float
    files: tuple[FileDigest, ...]
    form: ModelForm = "classifier"
    base_sha256: str | None = None
    """Digest of the base weights, if only adapters were exported."""
    warnings: tuple[str, ...] = ()
    """About the model's metrics."""
    warning_rules: tuple[str, ...] = ()
    text: str = ""
    """Text field of the dataset's source."""
