"""Where a run comes from and what was decided by it: from the files of its dataset to the decisions that cite it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from assay.base.config import changed_leaves
from assay.base.errors import AssayError
from assay.data.dataset.manifest_file import MANIFEST_FILE
from assay.records.benchmark import BenchmarkResult
from assay.records.capsule import Capsule
from assay.records.dataset import DatasetManifest, Shard
from assay.records.decision import Decision
from assay.reporting.views.runs.run import RunView
from assay.store.ledger.ledger import Ledger

BASELINE = "baseline"
MAX_MANIFEST_BYTES = 4 << 20
"""The shards of a dataset with a larger manifest are not listed."""


class Lineage(NamedTuple):
    """The records that lead to a run, and those that follow from it."""

    shards: tuple[Shard, ...] = ()
    """Empty if the dataset is elsewhere or has changed."""
    results: tuple[BenchmarkResult, ...] = ()
    decisions: tuple[Decision, ...] = ()
    """The newest of each candidate that was compared with the run's help."""
    capsules: tuple[Capsule, ...] = ()
    reference: str = ""
    """The run whose recipe this one changes: the baseline of its campaign, else its parent."""
    changes: Mapping[str, tuple[Any, Any]] = {}
    """Keys of the recipe with the reference's value and this run's."""


NO_LINEAGE = Lineage()


def run_lineage(ledger: Ledger, run: RunView) -> Lineage:
    """Return the lineage of a run."""
    decisions = {
        (decision.campaign, decision.candidate): decision
        for decision in ledger.decisions_with(run.run_id)
        if any(member.run_id == run.run_id for member in decision.runs)
    }
    reference, changes = _changes(ledger, run, list(decisions.values()))
    return Lineage(
        shards=_shards(run),
        results=tuple(ledger.benchmark_results(run.run_id)),
        decisions=tuple(decisions.values()),
        capsules=_capsules(run),
        reference=reference,
        changes=changes,
    )


def _changes(ledger: Ledger, run: RunView, decisions: list[Decision]) -> tuple[str, Mapping[str, tuple[Any, Any]]]:
    for decision in decisions:
        ours = next(member for member in decision.runs if member.run_id == run.run_id)
        baseline = next(
            (member for member in decision.runs if member.arm == BASELINE and member.seed == ours.seed), None
        )
        if ours.arm != BASELINE and baseline is not None and ledger.has_run(baseline.run_id):
            return baseline.run_id, changed_leaves(ledger.run(baseline.run_id).recipe, run.recipe)
    if run.parent is not None:
        return run.parent.run_id, run.parent.changes
    return "", {}


def _shards(run: RunView) -> tuple[Shard, ...]:
    try:
        path = Path(run.recipe["data"]["dataset"]) / MANIFEST_FILE
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            return ()
        manifest = DatasetManifest.from_json(path.read_bytes(), source=path)
    except (AssayError, OSError, KeyError, TypeError):
        return ()
    return manifest.shards if manifest.fingerprint == run.dataset_fingerprint else ()


def _capsules(run: RunView) -> tuple[Capsule, ...]:
    capsules = []
    for path in sorted(Path(run.run_dir).glob("capsules/*/capsule.json")):
        try:
            capsules.append(Capsule.from_json(path.read_bytes(), source=path))
        except (AssayError, OSError, ValidationError):
            continue  # written at this moment, or damaged: 'assay runs replay' says which
    return tuple(capsules)
