"""What `assay rollout` found: one answer made again by itself, and what became of it in its step."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from assay.records.record import Record
from assay.records.replay import Compared, Verdict


class RolloutReport(Record):
    """A rollout of a past step, drawn again alone."""

    run_id: str
    step: PositiveInt
    """In whose update it was to be learned."""
    row_id: NonNegativeInt
    row_place: str
    """Shard, row group, row of it."""
    sample: NonNegativeInt
    """Which of the answers to the prompt, from 0."""
    lane: NonNegativeInt
    policy_step: NonNegativeInt
    """The updates behind the weights that drew it."""
    from_step: NonNegativeInt
    """The step of the commit that was begun from; 0: the starting weights."""
    recorded_code_version: str
    code_version: str
    verdict: Verdict
    compared: tuple[Compared, ...]
    """`rollout alone`: its digest, made here beside the others and by itself; `journaled digest`: as the run's
    journal has it; `rollout_digest`: that of the whole step, as the run wrote it down and made here."""
    prompt: str
    answer: str
    """What graders read."""
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """How likely each token was (log), in the distribution that it was drawn from."""
    ended_by: Literal["stop", "length"]
    """An end token or a stop string, or `sampling.max_tokens`."""
    reward: float | None
    """None where a grader failed."""
    failure: str | None
    """Why it has no reward."""
    group_rewards: tuple[float | None, ...]
    """Those of all answers to the prompt."""
    advantage: float | None
    outcome: str
    """`learned`, `no_spread`, `overlong`, `failed`, `over_drawn`."""
    because: str
    """The outcome in words."""
