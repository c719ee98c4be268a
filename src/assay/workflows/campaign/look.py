"""Looks at a candidate: gather the evidence, decide, record. At declared looks, again, or in between.

Each decision is written once. It follows from the per-item results, so deciding again gives the same one. A recorded
decision that does not follow any more (a result changed, or someone edited the verdict) is detected and rejected.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from assay.base.errors import ConfigError, DamagedDataError, DataError
from assay.base.units import number_of
from assay.decision.candidate import STAGE, known_good_after
from assay.decision.decide import decide
from assay.records.decision import Clause, Decision, Look
from assay.statistics.campaign.looks import take_look
from assay.store.ledger.ledger import Ledger
from assay.workflows.campaign.evidence import ScoredRun, Scoring, gather, score_finished_runs
from assay.workflows.campaign.folder import (
    KNOWN_GOOD_FILE,
    OpenCampaign,
    recorded_decisions,
    recorded_looks,
    require_suites_as_declared,
)


def take_look_at(
    campaign: OpenCampaign,
    candidate: str,
    baseline_runs: Sequence[ScoredRun],
    candidate_runs: Sequence[ScoredRun],
    scoring: Scoring,
    *,
    is_gate: bool = True,
) -> Decision:
    """Decide on the paired seeds at a declared look, or with `is_gate=False` at an undeclared one.

    Raises `ConfigError` for a new look if a suite changed since the declaration, and the errors of
    `record_decision`.
    """
    num_seeds = len(baseline_runs)
    if (candidate, num_seeds, is_gate) not in recorded_looks(campaign.folder):
        require_suites_as_declared(campaign.record, campaign.config)
    earlier_looks = _looks_before(campaign, candidate, num_seeds, is_gate=is_gate)
    name = (
        f"look at {number_of(num_seeds, 'seed')}" if is_gate else f"unscheduled look at {number_of(num_seeds, 'seed')}"
    )
    look = take_look(campaign.config.look_plan(), earlier_looks, name=name, num_seeds=num_seeds, is_gate=is_gate)
    facts = gather(campaign, candidate, look, baseline_runs, candidate_runs, scoring)
    return record_decision(campaign, decide(campaign.config, campaign.record, facts), scoring.ledger)


def decide_again(campaign: OpenCampaign, scoring: Scoring) -> list[Decision]:
    """Repeat every recorded decision. Raises `DamagedDataError` if one does not follow from the results any
    more."""
    runs = {arm: score_finished_runs(campaign, arm, scoring) for arm in campaign.config.arm_names}
    decisions = []
    for recorded in recorded_decisions(campaign.folder):
        num_seeds = recorded.look.num_seeds
        decision = take_look_at(
            campaign,
            recorded.candidate,
            runs[campaign.config.baseline][:num_seeds],
            runs[recorded.candidate][:num_seeds],
            scoring,
            is_gate=recorded.look.is_gate,
        )
        decisions.append(decision)
    return decisions


def look_now(campaign: OpenCampaign, scoring: Scoring) -> list[Decision]:
    """Take an unscheduled look at every undecided candidate; it is recorded and spends error rate."""
    closed = {decision.candidate for decision in recorded_decisions(campaign.folder) if decision.is_final}
    baseline = score_finished_runs(campaign, campaign.config.baseline, scoring)
    decisions = []
    for candidate in campaign.config.candidates:
        runs = score_finished_runs(campaign, candidate.name, scoring)
        num_seeds = min(len(runs), len(baseline))
        if candidate.name in closed or num_seeds in campaign.config.all_looks:
            continue
        if num_seeds < 2:
            raise ConfigError(
                f"campaign '{campaign.config.name}': {number_of(num_seeds, 'paired seed')} of {candidate.name} "
                "finished so far; a look needs 2. Continue with 'assay decide run'."
            )
        pairs = baseline[:num_seeds], runs[:num_seeds]
        decisions.append(take_look_at(campaign, candidate.name, *pairs, scoring, is_gate=False))
    return decisions


def _looks_before(campaign: OpenCampaign, candidate: str, num_seeds: int, *, is_gate: bool) -> list[Look]:
    """Return the earlier looks at this candidate; an unscheduled look precedes the gate with as many seeds."""
    looks = [decision.look for decision in recorded_decisions(campaign.folder) if decision.candidate == candidate]
    return [look for look in looks if (look.num_seeds, look.is_gate) < (num_seeds, is_gate)]


# Records


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
    return clause.verdict if clause.value is None else f"{clause.verdict} ({clause.value:.6g})"


def _are_equal(before: Sequence[float | None], after: Sequence[float | None]) -> bool:
    """Compare numbers except for the last digits, because libraries and processors sum in different orders."""
    return len(before) == len(after) and all(
        old == new or (old is not None and new is not None and math.isclose(old, new, rel_tol=1e-6, abs_tol=1e-9))
        for old, new in zip(before, after, strict=True)
    )
