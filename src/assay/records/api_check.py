"""What a training API made of lost, repeated, delayed and reordered messages, and of restarts."""

from typing import Literal

from assay.records.record import Record

ApiOutcome = Literal["held", "lost", "doubled", "wrong", "error", "stuck", "not tried"]


class ApiFault(Record):
    """A fault that struck one request of a loop of the official SDK."""

    loop: str
    """`sft`, `rl`, `dpo`: of the Tinker API; `jobs`: of OpenAI's API."""
    request: str
    """Last part of the request's address."""
    fault: str
    """What happened to the request, such as `after`: the response was lost. Empty: nothing."""
    outcome: ApiOutcome
    """`held`: the client saw what it sees undisturbed."""
    seen: str
    """What the client saw otherwise."""


class ApiCheck(Record):
    """A check of a server."""

    url: str
    base: str
    """The base model that was trained."""
    verdict: Literal["pass", "fail"]
    """`fail`: some fault was not held."""
    faults: tuple[ApiFault, ...]
    not_tried: tuple[str, ...]
    """What was left out, and why."""
