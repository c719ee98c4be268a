"""Verdicts of a program's gates from the decisions of their campaigns, so they need not be entered by hand.

gates.G.evidence.campaign --> runs/campaigns/NAME/decisions --> scale: pass | narrow | stop
"""

from pathlib import Path
from typing import NamedTuple

from assay.base.errors import ConfigError
from assay.planning.program.program import Program
from assay.planning.program.progress import Progress
from assay.planning.program.work import Verdict
from assay.records.decision import Decision
from assay.records.evaluation import Estimate
from assay.store.home import Home
from assay.workflows.campaign.folder import newest_decisions

_VERDICTS: dict[str, Verdict] = {"scale": "pass", "narrow": "narrow", "stop": "stop"}
_BEST_FIRST = tuple(_VERDICTS)


class GateDecision(NamedTuple):
    """A campaign's decision as the verdict of a gate."""

    gate: str
    verdict: Verdict
    decision: Decision
    path: Path
    """The path of the decision's record."""


def gate_decisions(home: Home, program: Program) -> list[GateDecision]:
    """Return the final decision of each gate's campaign; of several candidates, the best recommendation."""
    found = []
    for name, gate in program.gates.items():
        campaign = gate.evidence.campaign if gate.evidence is not None else ""
        if not campaign or campaign not in home.campaign_names():
            continue
        folder = home.campaign_dir(campaign)
        final = [decision for decision in newest_decisions(folder).values() if decision.is_final]
        if final:
            best = min(final, key=lambda decision: _BEST_FIRST.index(decision.recommendation))
            path = folder / best.path()
            found.append(GateDecision(name, _VERDICTS[best.recommendation], best, path))
    return found


def gain_points(decisions: list[GateDecision]) -> Estimate | None:
    """Return the gain of the last gate decision in points; None if its unit is not a share."""
    if not decisions or decisions[-1].decision.unit not in ("share", "AUC"):
        return None
    found = decisions[-1].decision.effect
    low, high = (None if end is None else 100 * end for end in (found.low, found.high))
    return found.model_copy(update={"value": 100 * found.value, "low": low, "high": high})


def with_decisions(progress: Progress, decisions: list[GateDecision]) -> Progress:
    """Return the notes with the campaigns' verdicts. Raises `ConfigError` if the notes contradict one."""
    verdicts = dict(progress.verdicts)
    for decision in decisions:
        looks = verdicts.get(decision.gate, ())
        if looks and looks[-1] not in ("again", decision.verdict):
            raise ConfigError(
                f"verdicts.{decision.gate}: '{looks[-1]}' is noted, and its campaign '{decision.decision.campaign}' "
                f"decided '{decision.verdict}' ({decision.path}). Remove the note: the campaign's verdict counts."
            )
        before = tuple(verdict for verdict in looks[:-1] if verdict == "again")
        verdicts[decision.gate] = (*before, decision.verdict)
    return progress.model_copy(update={"verdicts": verdicts})
