"""Completions, stream chunks and logprobs as the SDK's types define them."""

import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from assay.inference.protocol import CompletionChunk, TokenLogprob


def new_heading(kind: str, prefix: str, now_s: float, model: str, digest: str) -> dict[str, Any]:
    """Return the common fields of a new response of type `kind` and of its chunks.

    The fingerprint is derived from the weights: the same seed and fingerprint give the same completion.
    """
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(now_s),
        "model": model,
        "system_fingerprint": f"fp_{digest[:12]}",
    }


def usage_object(prompt_tokens: int, num_completion_tokens: int) -> dict[str, int]:
    """`CompletionUsage`."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": prompt_tokens + num_completion_tokens,
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
    """`ChoiceLogprobs` of the text's tokens, without the end token."""
    return {
        "content": [
            {**_likely(token), "top_logprobs": [_likely(other) for other in token.top_logprobs]}
            for token in tokens
            if not token.is_end
        ],
        "refusal": None,
    }


def _likely(token: TokenLogprob) -> dict[str, Any]:
    text_bytes = None if token.text_bytes is None else list(token.text_bytes)
    return {"token": token.text, "bytes": text_bytes, "logprob": token.logprob}


def text_choice(
    index: int,
    text: str,
    tokens: Sequence[TokenLogprob] | None,
    top_logprobs: int,
    reason: str | None,
    offset: int = 0,
) -> dict[str, Any]:
    """One of `Completion.choices`, or a chunk of it. `tokens`: None without logprobs. `offset`: characters of the text
    in earlier chunks."""
    logprobs = None if tokens is None else text_logprobs(tokens, top_logprobs, offset)
    return {"index": index, "text": text, "finish_reason": reason, "logprobs": logprobs}


def text_logprobs(tokens: Sequence[TokenLogprob], top_logprobs: int, offset: int) -> dict[str, Any]:
    """`Logprobs` of all tokens including the end token, as lm-eval expects."""
    offsets, top = [], []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
        # Most likely first, so of two tokens with equal text the likelier stays. The sampled token is always included.
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
    """Format a server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


END_OF_STREAM = event("[DONE]")
