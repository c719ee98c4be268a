"""Runs items through a model and graders: the one way of suites and of the API's evals.

conversation --model--> completion --template variables--> graders --> grades      a failure affects its item only
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from assay.inference.protocol import Completion, Message, SamplerError
from assay.scoring.grade import Grade
from assay.scoring.grader_runner import GraderRunner, Tools
from assay.scoring.graders import Grader

FaultT = TypeVar("FaultT")
Generate = Callable[[Sequence[Sequence[Message]]], list[Completion | SamplerError]]


class EvalEngine:
    """The graders of one benchmark or eval run. Close it to end grader processes."""

    def __init__(self, graders: Sequence[Grader], tools: Tools) -> None:
        """Raises `ConfigError` if a grader cannot be applied here."""
        self._closing = ExitStack()
        self._runners: list[GraderRunner] = []
        for grader in graders:
            self._runners.append(GraderRunner(grader, tools))
            self._closing.callback(self._runners[-1].close)

    def grades(self, values: Sequence[Mapping[str, Any] | None]) -> list[list[Grade] | None]:
        """Return the grades of each item by all graders; None for items without template variables."""
        graded = [item for item in values if item is not None]
        by_item = iter(zip(*(runner.grade(graded) for runner in self._runners), strict=True))
        return [None if item is None else list(next(by_item)) for item in values]

    def close(self) -> None:
        self._closing.close()


def completions_of(
    conversations: Sequence[list[Message] | FaultT], generate: Generate
) -> list[Completion | SamplerError | FaultT]:
    """Return the completion of each conversation; an item with a fault instead of a conversation keeps it."""
    following = iter(generate([item for item in conversations if isinstance(item, list)]))
    return [next(following) if isinstance(item, list) else item for item in conversations]
