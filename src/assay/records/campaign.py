"""A campaign as declared before its first run, and a summary of each of its runs."""

from typing import Any

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.base.names import Name
from assay.records.record import Record
from assay.records.statement import Statement


class Campaign(Record):
    """The question, arms, looks and gates of a campaign. Written once and never edited."""

    name: Name
    config: dict[str, Any]
    """The resolved campaign file with defaults, without fields that may change later (budget, workers, dissent)."""
    config_sha256: str
    """SHA-256 of `config` and `recipe`."""
    recipe: dict[str, Any]
    """The known-good recipe as given."""
    base_dir: str
    """Folder of the campaign file; its paths are relative to it."""
    known_good_sha256: str | None
    """Digest of the known-good record of the recipe; None if the recipe is a file."""
    created_s: float
    suites: dict[str, str]
    """Path of each suite in `config` -> digest of the suite and the files it names, at declaration."""

    def run_ids(self) -> set[str]:
        """Return the ids of the runs that the campaign trains or may train."""
        first, count = (int(self.config.get(key, 0)) for key in ("first_seed", "seeds"))
        candidates = {candidate["name"]: candidate for candidate in self.config.get("candidates", ())}
        return {
            run_id
            for name, arm in {self.config.get("baseline"): self.config, **candidates}.items()
            for run_id in arm.get("runs") or [run_id_of(self.name, name, first + index) for index in range(count)]
        }


def run_id_of(campaign: str, arm: str, seed: int) -> str:
    """Return the id of an arm's run with one seed."""
    return f"{campaign}-{arm}-s{seed}"


ROWS_NOT_OBSERVED = "rows: not observed"
"""Audit verdict of a run that assay did not train, unless its checkpoint has changed."""


class CampaignRun(Record):
    """A run of one arm and seed."""

    arm: str
    """`baseline` or candidate."""
    seed: NonNegativeInt
    run_id: str
    recipe_sha256: str
    weights_digest: str
    audit_verdict: str
    num_attempts: PositiveInt
    device_s: NonNegativeFloat
    warnings: tuple[str | Statement, ...] = ()
    """Warnings about its model, each rule as a code; older records have sentences."""
    warning_rules: tuple[str, ...] = ()


class HoldoutOpening(Record):
    """A sealed holdout was opened for a candidate. Written once, before scoring."""

    campaign: str
    candidate: str
    benchmark: str
    suite_sha256: str
    """SHA-256 of its suite, so that other campaigns recognize the same holdout."""
    num_seeds: PositiveInt
    """Seeds of the declared look that opened it."""
    runs: tuple[str, ...]
    """Runs whose final weights are scored, baseline first."""
    opened_s: float
    """Seconds since the Unix epoch."""
