"""The rollout log of RL methods: each prompt with its completions, rewards and outcome; and scores of judges.

    prompt of (step, lane, row) --> group of answers --> paid, or failed with a reason --> one outcome

What is made again from weights and cursor needs no memory, but what was paid must be accounted for; and a judge
behind an endpoint may say something else the next time, so its word is kept from the moment that it fell.
"""

from typing import Literal, NamedTuple

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.records.record import Record

Outcome = Literal["trained", "zero_std", "overlong", "failed", "surplus"]
"""Outcome of a prompt. `trained`: a completion has a non-zero advantage. `zero_std`: all rewards are equal.
`overlong`: completions with an advantage were truncated and masked. `failed`: grading failed. `surplus`: the lane
already had enough groups."""


class RolloutRecord(NamedTuple):
    """A completion with its reward and advantage."""

    digest: int
    """64-bit digest of the tokens and sampler logprobs."""
    num_tokens: int
    is_cut: bool
    """It reached the length limit."""
    reward: float | None
    """None if a grader failed."""
    scores: tuple[float | None, ...]
    """Unweighted score of each reward."""
    advantage: float | None
    """None without a reward."""
    failure_kind: str = ""
    failure: str = ""
    """Why there is no reward."""
    tokens: tuple[int, ...] | None = None
    """Stored if the completion cannot be generated again here, and for two completions of every step, which the run's
    page shows: the best and the worst of the first prompt."""
    logprobs: tuple[float, ...] | None = None
    """Stored if the completion cannot be generated again here."""


class GroupRecord(NamedTuple):
    """The completions of one prompt and its outcome."""

    step: int
    """Optimizer step that counts the prompt."""
    lane: int
    row_id: int
    outcome: Outcome
    graders: str
    """JSON with name, digest and judge model of each grader, in the order of `scores`."""
    completions: tuple[RolloutRecord, ...]


class PromptCounts(Record):
    """Prompts by outcome."""

    trained: NonNegativeInt = 0
    zero_std: NonNegativeInt = 0
    overlong: NonNegativeInt = 0
    failed: NonNegativeInt = 0
    surplus: NonNegativeInt = 0

    def plus(self, other: "PromptCounts") -> "PromptCounts":
        """Return the sums by outcome."""
        counts = other.model_dump()
        return PromptCounts(**{name: count + counts[name] for name, count in self.model_dump().items()})

    def total(self) -> int:
        """Return the number of prompts."""
        return sum(self.model_dump().values())

    def __str__(self) -> str:
        named = {
            "trained": self.trained, "without spread": self.zero_std, "overlong": self.overlong,
            "failed": self.failed, "over-drawn": self.surplus,
        }  # fmt: skip
        return ", ".join(f"{count:,} {name}" for name, count in named.items() if count or name == "trained")


class JudgeScore(Record):
    """A judge's score of one completion."""

    sample: NonNegativeInt
    """Index of the completion in its group."""
    rollout: str
    """Digest of the completion as 16 hexadecimal digits."""
    score: float | None
    failure_kind: str = ""
    failure: str = ""
    """Why there is no score."""


class JudgeScoreGroup(Record):
    """A judge's scores of one prompt's completions, stored before they are used for training."""

    step: PositiveInt
    row_id: NonNegativeInt
    attempt: NonNegativeInt
    """Attempt that requested it."""
    grader: str
    grader_sha256: str
    scores: tuple[JudgeScore, ...]


class FirstLogprobGap(Record):
    """The logprob gap of a run's first step with a remote engine; later steps are compared with it."""

    step: PositiveInt
    gap: NonNegativeFloat
    """Nats per token."""


GAP_TIMES, NEGLIGIBLE_NATS = 20.0, 1e-5
"""Allowed growth of a run's logprob gap, and the gap that float32 explains; docs/generation.md has the reasons."""


def largest_gap(first: float) -> float:
    """Return the largest logprob gap of a later step that noise explains, from that of the first step."""
    return max(NEGLIGIBLE_NATS, GAP_TIMES * first)


class GeneratedCompletion(Record):
    """One completion, as tokens."""

    tokens: tuple[NonNegativeInt, ...]
    """Including the end token."""
    logprobs: tuple[float, ...]
    """Sampler logprobs in nats: float32 values, written exactly."""
    reason: Literal["stop", "length"]


class GeneratedGroup(Record):
    """All completions of one prompt."""

    step: PositiveInt
    """Optimizer step that trains on them."""
    row_id: NonNegativeInt
    attempt: NonNegativeInt
    """Attempt that requested it."""
    policy: str
    """Digest of the sampling weights."""
    completions: tuple[GeneratedCompletion, ...]
