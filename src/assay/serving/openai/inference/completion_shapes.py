"""What models said, as the SDK's types have it: completions, chunks of streams, log-probabilities."""

import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from assay.inference.protocol import CompletionChunk, TokenLogprob, TopLogprob


class Heading(NamedTuple):
    """What stands above every answer of a request."""

    answer_id: str
    created: int
    model: str
    fingerprint: str
    """That of the weights: with the same seed, the same of it answer the same."""

    def shape(self, kind: str) -> dict[str, Any]:
        """As a field of each."""
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def new_heading(prefix: str, now_s: float, model: str, digest: str) -> Heading:
    """That of one more answer."""
    return Heading(f"{prefix}-{secrets.token_hex(12)}", int(now_s), model, f"fp_{digest[:12]}")


def usage_shape(prompt_tokens: int, drawn: int) -> dict[str, int]:
    """`CompletionUsage`."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": drawn,
        "total_tokens": prompt_tokens + drawn,
    }


def chat_choice(piece: CompletionChunk, *, has_logprobs: bool) -> dict[str, Any]:
    """One of `ChatCompletion.choices`."""
    return {
        "index": piece.choice,
        "finish_reason": piece.reason,
        "message": {"role": "assistant", "content": piece.text, "refusal": None},
        "logprobs": chat_logprobs(piece.tokens) if has_logprobs else None,
    }


def chat_delta(piece: CompletionChunk, *, has_logprobs: bool) -> dict[str, Any]:
    """One of `ChatCompletionChunk.choices`."""
    return {
        "index": piece.choice,
        "finish_reason": piece.reason,
        "delta": {"content": piece.text},
        "logprobs": chat_logprobs(piece.tokens) if has_logprobs else None,
    }


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """`ChoiceLogprobs`: of the tokens of the text, so without the one that ended it."""
    return {
        "content": [
            {**_likely(token), "top_logprobs": [_likely(other) for other in token.top_logprobs]}
            for token in tokens
            if not token.is_end
        ],
        "refusal": None,
    }


def _likely(token: TopLogprob | TokenLogprob) -> dict[str, Any]:
    text_bytes = None if token.text_bytes is None else list(token.text_bytes)
    return {"token": token.text, "bytes": text_bytes, "logprob": token.logprob}


class TextChoice(NamedTuple):
    """One of `Completion.choices`, or a piece of it."""

    place: int
    text: str
    tokens: Sequence[TokenLogprob] | None
    """None: without log-probabilities."""
    top_logprobs: int
    reason: str | None
    offset: int = 0
    """Characters of its text that were told before."""

    def shape(self) -> dict[str, Any]:
        """`CompletionChoice`."""
        logprobs = None
        if self.tokens is not None:
            logprobs = text_logprobs(self.tokens, self.top_logprobs, self.offset)
        return {
            "index": self.place,
            "text": self.text,
            "finish_reason": self.reason,
            "logprobs": logprobs,
        }


def text_logprobs(tokens: Sequence[TokenLogprob], top_logprobs: int, offset: int) -> dict[str, Any]:
    """`Logprobs`: of all tokens, the one that ended it among them, as lm-eval counts on."""
    offsets, top = [], []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
        # The likeliest first, so of two that are spelled alike it stays; what was drawn is always among them.
        found: dict[str, float | None] = {}
        for other in token.top_logprobs:
            found.setdefault(other.text, other.logprob)
        found.setdefault(token.text, token.logprob)
        top.append(None if token.logprob is None or not top_logprobs else found)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": top if top_logprobs else None,
        "text_offset": offsets,
    }


def event(data: Any) -> bytes:
    """One event of a stream."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


END_OF_STREAM = event("[DONE]")
