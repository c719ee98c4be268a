"""What a run that learns from its own answers writes down of each prompt, and of what judges said.

    prompt of (step, lane, row) --> group of answers --> paid, or failed with a reason --> one outcome

What is made again from weights and cursor needs no memory, but what was paid must be accounted for; and a judge
behind an endpoint may say something else the next time, so its word is kept from the moment that it fell.
"""

from typing import Literal, NamedTuple

from pydantic import NonNegativeInt, PositiveInt

from assay.records.record import Record

Outcome = Literal["trained", "zero_std", "overlong", "failed", "surplus"]
"""What became of a prompt: at least one of its answers teaches | all were paid the same | those that would
teach were cut, and masked | none could be graded | others of its lane were learned in its place."""


class LoggedCompletion(NamedTuple):
    """One answer."""

    digest: int
    """That of its tokens and of what the sampler said of them: 64 bits."""
    num_tokens: int
    is_cut: bool
    """It ended by its length."""
    reward: float | None
    """None where a grader failed."""
    scores: tuple[float | None, ...]
    """What each reward gave by itself, without weight."""
    advantage: float | None
    """What it learned by; None where it has no reward."""
    failure_kind: str = ""
    failure: str = ""
    """Why there is no reward."""
    tokens: tuple[int, ...] | None = None
    """Only of answers that nobody here can make again; likewise what the sampler said of them."""
    logprobs: tuple[float, ...] | None = None


class LoggedGroup(NamedTuple):
    """The answers to one prompt, and what became of it."""

    step: int
    """The update in which the prompt is counted as learned."""
    lane: int
    row_id: int
    outcome: Outcome
    graders: str
    """What paid, in the order of scores: JSON with the name, the digest and the judge's model of each."""
    completions: tuple[LoggedCompletion, ...]


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
        """All prompts."""
        return sum(self.model_dump().values())

    def __str__(self) -> str:
        named = {
            "trained": self.trained, "without spread": self.zero_std, "overlong": self.overlong,
            "failed": self.failed, "over-drawn": self.surplus,
        }  # fmt: skip
        return ", ".join(f"{count:,} {name}" for name, count in named.items() if count or name == "trained")


class JudgeScore(Record):
    """What a judge said of one answer."""

    sample: NonNegativeInt
    """The number of the answer in its group."""
    rollout: str
    """The answer's digest, as 16 hexadecimal digits: the word is of this answer and of no other."""
    score: float | None
    failure_kind: str = ""
    failure: str = ""
    """Why there is no score."""


class JudgeScoreGroup(Record):
    """What a judge said of answers to one prompt, durable before anything is learned by it."""

    step: PositiveInt
    row_id: NonNegativeInt
    attempt: NonNegativeInt
    """That asked."""
    grader: str
    grader_sha256: str
    scores: tuple[JudgeScore, ...]
