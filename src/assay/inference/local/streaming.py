"""Streams completions while they are sampled, and scores given tokens.

    generator --a token of each choice--> TokenStreamer --text that cannot change any more--> StreamChunk

Text is emitted once it is final: a character with missing bytes waits for them, and so does a possible beginning of a
stop string. The chunks of a choice together are the text that would be returned at its end.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from assay.base.shapes import Float, Float32, Int64
from assay.inference.local.stop_tokens import CompletionText
from assay.inference.rollout import Rollout
from assay.models.token_scores import hidden_states


class ScoredToken(NamedTuple):
    """A token with its logprob."""

    token: int
    logprob: float | None
    """In nats, before temperature and truncation; None for the first token of a sequence."""
    top_logprobs: tuple[tuple[int, float], ...]
    """The most probable tokens with their logprobs, in descending order."""


class StreamChunk(NamedTuple):
    """More text of a choice."""

    choice: int
    text: str
    num_tokens: int
    """Tokens since the last chunk."""
    tokens: tuple[ScoredToken, ...]
    """These tokens, if logprobs are requested."""
    reason: Literal["stop", "length"] | None
    """Set in the last chunk."""


@dataclass
class _Choice:
    tokens: list[int] = field(default_factory=list)
    seen: list[ScoredToken] = field(default_factory=list)
    """Tokens since the last chunk."""
    num_emitted: int = 0
    text: str = ""
    """Emitted text."""


class TokenStreamer:
    """Emits chunks of choices while they are sampled; a `DrawObserver`."""

    def __init__(
        self,
        emit: Callable[[StreamChunk], None],
        tokenizer: Tokenizer,
        *,
        ends: Collection[int],
        stop: Sequence[str] = (),
        top_logprobs: int | None = None,
        is_streamed: bool = False,
    ) -> None:
        """`top_logprobs`: number of alternatives for each token; None: no logprobs. If not `is_streamed`, a
        choice is one chunk."""
        self._emit = emit
        self._completion = CompletionText(tokenizer, stop, ends)
        self._top_logprobs = top_logprobs
        self._is_streamed = is_streamed
        self._choices: dict[int, _Choice] = defaultdict(_Choice)

    def drew(
        self,
        prompts: Int64[np.ndarray, "row"],
        logits: Float[Tensor, "row entry"],
        tokens: Int64[Tensor, "row"],
    ) -> None:
        rows = np.flatnonzero(prompts >= 0).tolist()
        sampled = tokens.cpu().tolist()
        if self._top_logprobs is not None:
            of_rows = torch.log_softmax(logits[rows].float(), dim=-1)
            seen = seen_tokens(of_rows, tokens[rows], self._top_logprobs)
        for position, row in enumerate(rows):
            choice = self._choices[int(prompts[row])]
            choice.tokens.append(sampled[row])
            if self._top_logprobs is not None:
                choice.seen.append(seen[position])
            if self._is_streamed:
                self._emit_stable(int(prompts[row]), choice)

    def ended(self, prompt: int, rollout: Rollout) -> None:
        choice = self._choices.pop(prompt)
        text = self._completion.of(rollout.tokens.tolist())
        # Emitted text stays, even if the tokenizer decodes the whole differently from its prefix.
        rest = text[len(choice.text) :]
        self._emit(self._piece(prompt, choice, rest, rollout.reason))

    def _emit_stable(self, index: int, choice: _Choice) -> None:
        text = self._completion.stable_prefix(self._completion.of(choice.tokens))
        if text.startswith(choice.text) and len(text) > len(choice.text):
            self._emit(self._piece(index, choice, text[len(choice.text) :], None))
            choice.text = text

    def _piece(self, index: int, choice: _Choice, text: str, reason: Literal["stop", "length"] | None) -> StreamChunk:
        num_new, seen = len(choice.tokens) - choice.num_emitted, tuple(choice.seen)
        choice.num_emitted, choice.seen = len(choice.tokens), []
        return StreamChunk(index, text, num_new, seen, reason)


def seen_tokens(
    logprobs: Float32[Tensor, "token entry"], tokens: Int64[Tensor, "token"], top_logprobs: int
) -> list[ScoredToken]:
    """Return the tokens with their logprobs, each in its own distribution."""
    own = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
    if not top_logprobs:
        return [ScoredToken(token, logprob, ()) for token, logprob in zip(tokens.tolist(), own, strict=True)]
    top = logprobs.topk(min(top_logprobs, logprobs.shape[-1]), dim=-1)
    top_tokens = [
        tuple(zip(indices, values, strict=True))
        for indices, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    ]
    return [ScoredToken(*logprob) for logprob in zip(tokens.tolist(), own, top_tokens, strict=True)]


@torch.inference_mode()
def scored(network: Any, tokens: Sequence[int], *, top_logprobs: int = 0) -> list[ScoredToken]:
    """Return each token's logprob given those before it, from one pass over them alone; None for the first."""
    sequence = torch.tensor(list(tokens), dtype=torch.long, device=network.device)
    first = ScoredToken(int(tokens[0]), None, ())
    if len(tokens) == 1:
        return [first]
    logits = network(input_ids=sequence[None]).logits[0, :-1].float()
    return [first, *seen_tokens(torch.log_softmax(logits, dim=-1), sequence[1:], top_logprobs)]


@torch.inference_mode()
def mean_state(network: Any, tokens: Sequence[int]) -> list[float]:
    """Return the mean of the last layer's states over the tokens: an embedding of the text."""
    sequence = torch.tensor([list(tokens)], dtype=torch.long, device=network.device)
    states = hidden_states(network.base_model, sequence)[0]
    vector: list[float] = states.double().mean(dim=0).tolist()
    return vector
