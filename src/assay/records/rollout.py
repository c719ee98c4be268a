"""Result of `assay runs rollout`: one rollout generated again, and its outcome in its step."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from assay.records.record import Record
from assay.records.replay import Compared, Verdict


class RolloutReport(Record):
    """A rollout, generated again."""

    run_id: str
    step: PositiveInt
    row_id: NonNegativeInt
    row_location: str
    sample: NonNegativeInt
    lane: NonNegativeInt
    policy_step: NonNegativeInt
    """Updates of the sampling weights."""
    from_step: NonNegativeInt
    """Commit that generation started from, or 0."""
    recorded_code_version: str
    code_version: str
    verdict: Verdict
    compared: tuple[Compared, ...]
    prompt: str
    completion: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """The sampler's, of `tokens`."""
    ended_by: Literal["stop", "length"]
    reward: float | None
    failure: str | None
    """Why it has no reward."""
    group_rewards: tuple[float | None, ...]
    advantage: float | None
    outcome: str
    because: str
