"""The rule of a ladder: how much error a change may spend, and what becomes of it by its verdicts.

Pure functions, so that the simulation of thousands of ladders decides as a real one does.
"""

from collections.abc import Sequence

from assay.records.decision import Clause
from assay.records.ladder import NO_VERDICT, LadderAction


def next_error_rate(total: float, num_changes: int, adopted: Sequence[bool]) -> float:
    """Return the error that the next change may spend, given which of the earlier ones were adopted.

    Every change has an equal share. An adopted one hands its own to the next; one that was not adopted has spent it.
    This is the fallback procedure (Wiens 2003): with fixed shares it is Bonferroni's, and it keeps the probability of
    any false adoption at `total` for every mixture of true and null changes.
    """
    share = rate = total / num_changes
    for was_adopted in adopted:
        rate = share + (rate if was_adopted else 0.0)
    return rate


def action_of(clauses: Sequence[Clause]) -> LadderAction:
    """Return what becomes of a change, by the clauses at the base's own size.

    A broken gate rolls it back, whatever it gains. It is adopted if its gain is shown and every gate that could be
    judged passes; otherwise it is kept out.
    """
    if any(clause.verdict == "fail" for clause in clauses):
        return "roll back"
    is_open = any(clause.verdict == "undecided" and clause.reason != NO_VERDICT for clause in clauses)
    return "keep out" if is_open else "adopt"
