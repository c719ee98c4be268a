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
    """What `assay export` wrote; it lies beside the weights."""

    run_id: str
    step: NonNegativeInt
    """The step of the commit."""
    weights_digest: str
    """As the run's log has it."""
    recipe: dict[str, Any]
    """Resolved. Dataset and suite are named, not where they lie."""
    recipe_sha256: str
    """The digest of the run's recipe, places and all."""
    dataset: str
    """Its name."""
    dataset_fingerprint: str
    columns: dict[str, str]
    """Columns that the model reads beside the tokens -> their Arrow types."""
    tokenizer_sha256: str
    is_tokenizer_proved: bool
    """The dataset's manifest names this tokenizer; else somebody vouched for it."""
    max_tokens: PositiveInt
    """The longest row that was trained on; a classifier's longer texts are cut."""
    code_version: str
    """The version of assay, in the run's record."""
    exported_by: str
    """Version of assay."""
    exported_s: float
    """Seconds since the Unix epoch."""
    files: tuple[FileDigest, ...]
    """Those that a model is loaded from: weights, configuration, tokenizer, module."""
    form: ModelForm = "classifier"
    """A classifier by its own module, a causal language model, or a reward: a sequence classification with one
    number."""
    base_sha256: str | None = None
    """Digest of the weights below the adapters, where these alone were written; who loads them brings those."""
    warnings: tuple[str, ...] = ()
    """What the model's numbers warn of, a sentence each."""
    warning_rules: tuple[str, ...] = ()
    """The rule behind each of them."""
    text: str = ""
    """The field of the texts that its dataset was built of; empty where nobody knows."""
