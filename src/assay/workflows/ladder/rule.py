"""The rule of a ladder: how much error a change may spend, and what becomes of it by its verdicts.

Pure functions, so that the simulation of thousands of ladders decides as a real one does.
"""

from collections.abc import Sequence

from assay.records.ladder import BASE_STEP, NO_VERDICT, TOGETHER_STEP, LadderAction, LadderTrial


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


def action_of(step: str, trials: Sequence[LadderTrial]) -> LadderAction:
    """Return what becomes of a step, by its clauses at the base's own size.

    A base that leaves its law at any size stops the ladder. A broken gate rolls a change back, whatever it gains. It is
    adopted if its gain is shown and every gate that could be judged passes; otherwise it is kept out.
    """
    if any(clause.type == "base_loss" and clause.verdict == "fail" for trial in trials for clause in trial.clauses):
        return "stop"
    own = [clause for trial in trials[-1:] for clause in trial.clauses if clause.type != "interaction"]
    if any(clause.verdict == "fail" for clause in own):
        return "roll back"
    if step in (BASE_STEP, TOGETHER_STEP):
        return "continue"
    is_open = any(clause.verdict == "undecided" and clause.reason != NO_VERDICT for clause in own)
    return "keep out" if is_open else "adopt"
