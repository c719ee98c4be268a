"""The account of device time, read off the ledger: every second of every attempt is in exactly one phase."""

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest

from assay.base.commit_interval import optimal_commit_interval_s
from assay.records.commit import Commit, RunFinished
from assay.records.goodput import USEFUL, Goodput, Interruption
from assay.records.phase import Phase
from assay.records.run import Attempt, PhaseSeconds, Run
from assay.store.ledger.ledger import Ledger
from assay.store.settings import NO_SETTINGS, Money, Settings, cost_of


def goodput_of(ledger: Ledger, runs: Sequence[Run], settings: Settings = NO_SETTINGS) -> Goodput:
    """The account of these runs' training together; attempts that still run are left out."""
    by_phase = Counter[Phase]()
    held_s = running_s = useful_rank_s = evaluation_s = 0.0
    num_commits = num_commit_ranks = num_steps = num_open = 0
    interruptions: list[Interruption] = []
    costs: list[Money | None] = []
    for run in runs:
        all_attempts = ledger.attempts(run.run_id)
        attempts = [attempt for attempt in all_attempts if attempt.ended_s is not None]
        num_open += len(all_attempts) - len(attempts)
        seconds = ledger.training_seconds(run.run_id)
        ended_attempts = {attempt.attempt for attempt in attempts}
        entries = [entry for entry in ledger.log_entries(run.run_id) if entry.attempt in ended_attempts]
        commits = [entry for entry in entries if isinstance(entry, Commit)]
        for rank in seconds:
            held_s += rank.held_s
            by_phase.update(rank.seconds)  # adds; floats, whatever the type says
        costs.append(cost_of(settings, all_attempts, seconds))
        evaluation_s += ledger.evaluation_s(run.run_id)
        running_s += sum((attempt.ended_s or 0.0) - attempt.started_s for attempt in attempts)
        finished_by = next((entry.attempt for entry in reversed(entries) if isinstance(entry, RunFinished)), None)
        interruptions += interruptions_of(attempts, seconds, finished_by=finished_by)
        num_commits += len(commits)
        num_commit_ranks += sum(commit.world_size for commit in commits)
        useful_rank_s += sum(rank.seconds.get(phase, 0.0) for rank in seconds if rank.rank == 0 for phase in USEFUL)
        inherited = run.parent.step if run.parent is not None else 0
        num_steps += max((commit.step - inherited for commit in commits), default=0)
    # All lost, where no commit was made in time: then nothing is known of what one costs.
    commit_s = (by_phase["checkpoint"] / num_commit_ranks if num_commit_ranks else None) or None
    failure_s = running_s / len(interruptions) if interruptions else None
    has_all_costs = bool(costs) and None not in costs
    return Goodput(
        run_ids=tuple(run.run_id for run in runs),
        num_open_attempts=num_open,
        held_device_s=held_s,
        evaluation_device_s=evaluation_s,
        by_phase=by_phase,
        interruptions=tuple(interruptions),
        num_commits=num_commits,
        commit_s=commit_s,
        failure_s=failure_s,
        optimal_commit_s=optimal_commit_interval_s(commit_s, failure_s) if commit_s and failure_s else None,
        step_s=useful_rank_s / num_steps if num_steps else None,
        cost=sum(cost.amount for cost in costs if cost) if has_all_costs else None,
        currency=settings.currency if has_all_costs else "",
    )


def interruptions_of(
    attempts: Sequence[Attempt], seconds: Sequence[PhaseSeconds], *, finished_by: int | None
) -> list[Interruption]:
    """The early ends of ended attempts, up to the one that made the last step: what came after interrupted nothing."""
    spent_s: Counter[tuple[int, Phase]] = Counter()
    for rank in seconds:
        spent_s.update({(rank.attempt, phase): spent for phase, spent in rank.seconds.items()})  # adds; floats
    has_progress = any(spent_s[attempt.attempt, phase] for attempt in attempts for phase in USEFUL)
    found = []
    for attempt, after in zip_longest(attempts, attempts[1:]):
        if attempt.outcome in ("running", "succeeded"):
            continue
        if finished_by is not None and attempt.attempt >= finished_by:
            break
        assert attempt.ended_s is not None
        start = after or (None if has_progress else attempts[0])  # if nothing was kept, the first start was wasted, too
        found.append(
            Interruption(
                run_id=attempt.run_id,
                attempt=attempt.attempt,
                at_s=attempt.ended_s,
                reason=attempt.reason,
                failure=attempt.failure,
                lost_device_s=spent_s[attempt.attempt, "lost"],
                stalled_device_s=spent_s[attempt.attempt, "stalled"],
                startup_device_s=spent_s[start.attempt, "startup"] if start else 0.0,
                waited_device_s=max(0.0, after.started_s - attempt.ended_s) * after.world_size if after else 0.0,
            )
        )
    return found
