"""What is told of a run before it begins is what it will do."""

from hypothesis import given
from hypothesis import strategies as st

from assay.training.trainer.config import TrainerConfig
from assay.training.trainer.trainer import CommitSchedule
from assay.workflows.preview import _num_due
from clocks import ManualClock


@given(num_steps=st.integers(1, 60), commit_every=st.integers(1, 70), evaluate_every=st.integers(1, 70) | st.none())
def test_commits_and_evaluations_fall_where_training_makes_them(
    num_steps: int, commit_every: int, evaluate_every: int | None
) -> None:
    config = TrainerConfig(commit_every=commit_every, evaluate_every=evaluate_every)
    schedule = CommitSchedule(config, ManualClock(), failure_s=1e9)
    steps = range(1, num_steps + 1)
    assert _num_due(num_steps, commit_every, evaluate_every) == sum(schedule.is_due(step, num_steps) for step in steps)
    evaluated = {step for step in steps if evaluate_every and step % evaluate_every == 0} | {num_steps}
    assert _num_due(num_steps, evaluate_every) == len(evaluated)
