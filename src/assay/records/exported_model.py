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
    """The record of an exported model."""

    run_id: str
    step: NonNegativeInt
    weights_digest: str
    recipe: dict[str, Any]
    recipe_sha256: str
    dataset: str
    dataset_fingerprint: str
    columns: dict[str, str]
    """Arrow types of additional inputs."""
    tokenizer_sha256: str
    is_tokenizer_proved: bool
    """The dataset names this tokenizer."""
    max_tokens: PositiveInt
    """For the longest training row."""
    code_version: str
    exported_by: str
    """Version of assay."""
    exported_s: float
    files: tuple[FileDigest, ...]
    form: ModelForm = "classifier"
    base_sha256: str | None = None
    """For adapters alone."""
    warnings: tuple[str, ...] = ()
    warning_rules: tuple[str, ...] = ()
    text: str = ""
    """Text field of the dataset's source."""
