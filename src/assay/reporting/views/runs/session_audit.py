"""What the audit of a session of the Tinker API finds, with the sources of trained tokens."""

from typing import Literal

from assay.reporting.views.view import View


class TokenSource(View):
    """Tokens that a model learned in one request and that one other request sampled."""

    model: str
    """That learned them."""
    seq_id: int
    """Number of the model's request."""
    sampled_by: str
    """Id of the request that sampled them."""
    sequences: tuple[int, ...]
    """Numbers of its completions."""
    weights: str
    """That it sampled from: a base model, a path, or `MODEL before request N`."""
    num_tokens: int
    """With a weight or an advantage that is not 0."""
    is_claimed: bool
    """The client named the sequences, and their tokens are equal. False: found by equal tokens."""


class SessionAudit(View):
    """What the audit of a session found."""

    session_id: str
    """As in the paths of its saved weights."""
    verdict: Literal["pass", "fail", "incomplete"]
    """`incomplete`: no problem, but some requests have no result yet."""
    num_requests: int
    """Acknowledged."""
    num_results: int
    """Executed."""
    num_trained: int
    """Datums whose gradient was part of an update, each of exactly one."""
    num_waiting: int
    """Datums whose gradient waits for the next update."""
    num_dropped: int
    """Datums whose update failed, or whose model was replaced by saved weights before it."""
    num_trained_tokens: int
    """Targets of learned datums with a weight or an advantage that is not 0."""
    token_sources: tuple[TokenSource, ...]
    """Sampled sequences that the trained tokens came from."""
    problems: tuple[str, ...]
    """What is missing, doubled or changed, and claims about tokens that are not true."""

    @property
    def num_sampled_tokens(self) -> int:
        """Trained tokens with a source."""
        return sum(source.num_tokens for source in self.token_sources)
