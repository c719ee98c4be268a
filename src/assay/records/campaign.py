"""A campaign as it was declared before its first run, and what each of its runs was."""

from typing import Any

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.base.names import Name
from assay.records.record import Record


class Campaign(Record):
    """The question, the arms, the looks and the gates. Written once: what was declared cannot be edited
    later."""

    name: Name
    config: dict[str, Any]
    """The resolved campaign file, defaults included; without what may change on the way (budget, workers,
    dissent)."""
    config_sha256: str
    """SHA-256 of `config` and `recipe`."""
    recipe: dict[str, Any]
    """The known-good recipe as given."""
    base_dir: str
    """Folder of the campaign's file: what its paths are relative to."""
    known_good_sha256: str | None
    """Digest of the known-good record that it came from; None where it is a recipe's file."""
    created_s: float
    suites: dict[str, str]
    """Path of each suite that `config` names -> digest of the suite and of all files that it names, as they
    were."""


class CampaignRun(Record):
    """A run of one arm and seed."""

    arm: str
    """`baseline` or the candidate."""
    seed: NonNegativeInt
    run_id: str
    recipe_sha256: str
    weights_digest: str
    audit_verdict: str
    num_attempts: PositiveInt
    device_s: NonNegativeFloat
    warnings: tuple[str, ...] = ()
    """About the model's metrics."""
    warning_rules: tuple[str, ...] = ()


class HoldoutOpening(Record):
    """That a sealed benchmark was opened for a candidate: written before it is scored, once."""

    campaign: str
    candidate: str
    benchmark: str
    suite_sha256: str
    """SHA-256 of the suite that holds it: by this another campaign knows that it is the same holdout."""
    num_seeds: PositiveInt
    """Seeds of the declared look for which it was opened."""
    runs: tuple[str, ...]
    """Whose last weights are scored, baseline's first."""
    opened_s: float
    """Seconds since the Unix epoch."""
