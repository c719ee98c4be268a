"""Records the decisions of looks; each is written once.

A decision follows from the per-item results, so deciding again gives the same one. A recorded decision that
does not follow any more (a result changed, or someone edited the verdict) is detected and rejected.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from assay.base.errors import DamagedDataError, DataError
from assay.decision.candidate import STAGE
from assay.decision.lineage import known_good_after
from assay.records.decision import Clause, Decision
from assay.store.ledger.ledger import Ledger
from assay.workflows.campaign.folder import KNOWN_GOOD_FILE, OpenCampaign, recorded_looks


def record_decision(campaign: OpenCampaign, decision: Decision, ledger: Ledger) -> Decision:
    """Record a decision; if only files that clauses name have changed since, as a further revision.

    Raises `DamagedDataError` if the recorded decision of this look contradicts the results, `DataError` if it
    has other clauses.
    """
    look = decision.look
    recorded = recorded_looks(campaign.folder).get((decision.candidate, look.num_seeds, look.is_gate))
    if recorded is not None:
        _require_same_clauses(recorded, decision, campaign.folder / recorded.path())
        if _is_revised(recorded, decision):
            decision = decision.model_copy(update={"revision": recorded.revision + 1})
        elif (problem := difference_of(recorded, decision)) is not None:
            raise DamagedDataError(
                f"{campaign.folder / decision.path()}: does not follow from the results any more: {problem}. "
                "A result or the decision was changed later. Restore the file, or move it away and decide again."
            )
        else:
            decision = recorded
    campaign.store.put_if_absent(decision.path(), decision.to_json().encode())
    ledger.record_decision(decision)
    _keep_known_good(campaign, decision)
    return decision


def changed_since(decisions: Sequence[Decision], ledger: Ledger) -> list[Decision]:
    """Return the decisions that differ from the ones in the ledger."""
    campaigns = {decision.campaign for decision in decisions}
    known = {decision.path(): decision for name in campaigns for decision in ledger.decisions(name)}
    return [decision for decision in decisions if known.get(decision.path(), decision) != decision]


def _require_same_clauses(recorded: Decision, found: Decision, path: Path) -> None:
    before, now = (
        [(gate.gate, clause.name) for gate in decision.gates for clause in gate.clauses]
        for decision in (recorded, found)
    )
    if before == now:
        return
    differ = [f"'{name}' of gate {gate} is new" for gate, name in now if (gate, name) not in before]
    differ += [f"'{name}' of gate {gate} is gone" for gate, name in before if (gate, name) not in now]
    raise DataError(
        f"{path}: has other clauses than this version of assay: {', '.join(differ) or 'in another order'}. "
        "Use the version that wrote it, or move the file away and run the campaign again."
    )


def _is_revised(recorded: Decision, found: Decision) -> bool:
    """Return whether the decisions differ only in clauses whose files have changed."""
    files = {clause.name: clause.evidence for gate in recorded.gates for clause in gate.clauses}
    changed = frozenset(
        clause.name for gate in found.gates for clause in gate.clauses if files[clause.name] != clause.evidence
    )
    if not changed or difference_of(recorded, found) is None:
        return False
    return difference_of(recorded, found, besides=changed) is None


def _keep_known_good(campaign: OpenCampaign, decision: Decision) -> None:
    """Save the recipe of a scaled candidate as known good; remove it if a revision no longer scales it. Stages
    are skipped."""
    key = f"{decision.candidate}.{KNOWN_GOOD_FILE}"
    if STAGE in decision.patch:
        return
    if decision.recommendation == "scale":
        known_good = known_good_after(
            decision,
            campaign.record.recipe,
            campaign.known_good,
            name=f"{decision.campaign}-{decision.candidate}",
        )
        campaign.store.put(key, known_good.to_json().encode())
    elif decision.revision > 1 and campaign.store.exists(key):
        campaign.store.delete(key)


def difference_of(recorded: Decision, found: Decision, *, besides: frozenset[str] = frozenset()) -> str | None:
    """Describe the first clause in which two decisions of a look differ; costs, opinions and texts are ignored.

    `besides`: clauses that may differ, and with them the recommendation.
    """
    if not besides and recorded.recommendation != found.recommendation:
        return f"it says {recorded.recommendation}, the results say {found.recommendation}"
    for before, after in zip(recorded.gates, found.gates, strict=True):
        for old, new in zip(before.clauses, after.clauses, strict=True):
            if old.type in ("budget", "spent") or old.name in besides:
                continue
            if old.verdict != new.verdict or not _are_equal((old.value, old.bound), (new.value, new.bound)):
                return f"clause '{old.name}' was {_verdict_text(old)}, and is {_verdict_text(new)}"
    was, is_now = recorded.effect, found.effect
    if not _are_equal((was.value, was.low, was.high), (is_now.value, is_now.low, is_now.high)):
        return f"its effect was {was.value:+.9g}, and is {is_now.value:+.9g}"
    return None


def _verdict_text(clause: Clause) -> str:
    return f"{clause.verdict} ({clause.seen}{'' if clause.value is None else f': {clause.value:.6g}'})"


def _are_equal(before: Sequence[float | None], after: Sequence[float | None]) -> bool:
    """Compare numbers except for the last digits, because libraries and processors sum in different orders."""
    return len(before) == len(after) and all(
        old == new or (old is not None and new is not None and math.isclose(old, new, rel_tol=1e-6, abs_tol=1e-9))
        for old, new in zip(before, after, strict=True)
    )
