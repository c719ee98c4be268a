"""A campaign's decision as a part of another document: its sentence, and every clause of its gates."""

from pathlib import Path

from assay.records.decision import Decision
from assay.reporting.figures.figure import Table
from assay.reporting.pages.document import Block, Passage, TitledTable


def decision_blocks(decision: Decision, path: Path) -> list[Block]:
    """What was recommended and by which clauses; `path` is the record that the reader may check."""
    rows = [
        (gate.gate, clause.name, clause.asks, clause.seen, clause.verdict)
        for gate in decision.gates
        for clause in gate.clauses
    ]
    return [
        Passage(f"{decision.question} {decision.sentence}"),
        TitledTable(
            f"Campaign {decision.campaign}, candidate {decision.candidate}",
            f"{decision.effect.value:+.4g} {decision.unit} on the primary benchmark; decided by "
            f"{decision.decided_by}. "
            f"Record: {path.parent.parent.name}/{path.parent.name}/{path.name}, SHA-256 "
            f"{decision.digest()[:12]}…",
            Table(("gate", "clause", "asks", "seen", "verdict"), rows),
        ),
    ]
