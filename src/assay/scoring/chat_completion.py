"""What an endpoint's chat completion says, in whichever of its published forms.

`content` may be text, a list of typed parts, or null. Reasoning is no part of the completion. Where nothing was
completed (tools called, the budget spent on reasoning, a filter, an error behind status 200), the machinery
failed and not the model: a `SamplerError`, never an empty text that a grader would score.
"""

from collections.abc import Mapping
from typing import Any

from assay.scoring.sampler import CUT_REASONS, Completion, SamplerError

_TEXT_PARTS = frozenset({"text", "output_text"})
_REASONING_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_text"})
_ERROR_REASONS = frozenset({"error", "abort", "insufficient_system_resource"})
"""With which OpenRouter, vLLM and DeepSeek say that they broke off."""


def read_completion(answer: Any) -> Completion:
    """The first choice of a chat completion, or of a text completion; raises `SamplerError`."""
    if not isinstance(answer, Mapping):
        raise SamplerError("server", f"not a chat completion: {answer!r:.200}")
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    error = answer.get("error") or (choice.get("error") if isinstance(choice, Mapping) else None)
    if error:
        raise SamplerError("server", f"an error instead of a completion: {error!r:.200}")
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if isinstance(choice, Mapping) and message is None and isinstance(choice.get("text"), str):
        message = {"content": choice["text"]}
    if not isinstance(choice, Mapping) or not isinstance(message, Mapping):
        raise SamplerError("server", f"not a chat completion: {answer!r:.200}")
    reason = choice.get("finish_reason")
    reason = reason.lower() if isinstance(reason, str) and reason else "unknown"
    text = _text_of(message)
    _refuse_uncompleted(text, reason, message)
    usage = answer.get("usage")
    return Completion(
        text=text or "",
        finish_reason="length" if reason in CUT_REASONS else reason,
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
    )


def _text_of(message: Mapping[str, Any]) -> str | None:
    """The completion's text; None where the message has none."""
    if refusal := message.get("refusal"):
        raise SamplerError("refusal", f"the model refused: {refusal!r:.200}")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return None if content is None else _without_lone_surrogates(content)
    texts: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        kind = str(part.get("type")) if isinstance(part, Mapping) else ""
        if kind == "refusal":
            raise SamplerError("refusal", f"the model refused: {part.get('refusal')!r:.200}")
        text = part if isinstance(part, str) else part.get("text") if kind in _TEXT_PARTS else None
        if isinstance(text, str):
            texts.append(text)
        elif kind not in _REASONING_PARTS:
            raise SamplerError("server", f"a completion with a part that is no text: {part!r:.200}")
    return _without_lone_surrogates("".join(texts)) if texts else None


def _refuse_uncompleted(text: str | None, reason: str, message: Mapping[str, Any]) -> None:
    if reason == "content_filter":
        raise SamplerError("refusal", "the endpoint's filter withheld the completion (content_filter)")
    if reason in _ERROR_REASONS:
        raise SamplerError("server", f"the endpoint broke off the completion (finish_reason: {reason})")
    if text is not None and text.strip():
        return
    if message.get("tool_calls") or message.get("function_call"):
        raise SamplerError("server", "the model called tools instead of answering in text")
    if reason in CUT_REASONS:
        raise SamplerError(
            "server", "all of max_tokens was spent before any text (on reasoning?). Raise sampling.max_tokens"
        )
    if text is None or message.get("reasoning_content") or message.get("reasoning"):
        raise SamplerError("server", f"a completion without text (finish_reason: {reason})")


def _without_lone_surrogates(text: str) -> str:
    """JSON can hold half a surrogate pair, UTF-8 and so our files cannot: it becomes U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _count(usage: Any, key: str) -> int:
    """A number of tokens; 0 where the endpoint counts none."""
    value = usage.get(key) if isinstance(usage, Mapping) else None
    return value if isinstance(value, int) and value >= 0 else 0
