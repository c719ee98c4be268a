"""A pipeline as it was declared before its first run."""

from typing import Any

from assay.base.names import Name
from assay.records.record import Record


class Pipeline(Record):
    """The stages, their recipes and the seeds. Written once: a file that changed is another pipeline."""

    name: Name
    config: dict[str, Any]
    """The resolved file, defaults included; without what may change on the way (budget, workers)."""
    recipes: dict[str, dict[str, Any]]
    """Stage -> its recipe as given, with the stage's patch; earlier stages still by their names."""
    config_sha256: str
    """SHA-256 of `config` and `recipes`."""
    base_dir: str
    """Folder of the pipeline's file: what its paths are relative to."""
    created_s: float
