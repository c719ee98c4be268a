"""Parses chat completions in the forms that various endpoints return.

`content` may be text, a list of typed parts, or null; reasoning is dropped. If nothing was completed, the endpoint
failed and not the model: a `SamplerError` is raised instead of returning an empty text that a grader would score.
"""

from collections.abc import Mapping
from typing import Any

from assay.scoring.sampler import CUT_REASONS, Completion, SamplerError

_TEXT_PARTS = frozenset({"text", "output_text"})
_REASONING_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_text"})
_ERROR_REASONS = frozenset({"error", "abort", "insufficient_system_resource"})
"""Finish reasons of OpenRouter, vLLM and DeepSeek for an aborted completion."""
_FILTER_REASONS = frozenset(
    {"content_filter", "content_filtered", "safety", "recitation", "blocklist", "prohibited_content", "spii"}
    | {"guardrail_intervened", "refusal", "sensitive"}
)
"""Finish reasons of OpenAI, Gemini, Bedrock, Anthropic and GLM for a withheld completion."""
_NATURAL_ENDS = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete", "unknown"})
"""Finish reasons with which an empty text is a valid completion: the model ended its turn at once."""


def read_completion(response: Any) -> Completion:
    """Parse the first choice of a chat or text completion. Raises `SamplerError`."""
    whole = response if isinstance(response, Mapping) else {}
    choices = whole.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    if error := whole.get("error") or choice.get("error"):
        raise SamplerError("server", f"an error instead of a completion: {error!r:.200}")
    message = choice.get("message", {"content": choice["text"]} if "text" in choice else None)
    if not isinstance(message, Mapping):
        raise SamplerError("server", f"not a chat completion: {response!r:.200}")
    reason = choice.get("finish_reason")
    reason = reason.lower() if isinstance(reason, str) and reason else "unknown"
    text, usage = _text_of(message), whole.get("usage")
    _check_completed(text, reason, message)
    counts = [usage.get(f"{kind}_tokens") if isinstance(usage, Mapping) else 0 for kind in ("prompt", "completion")]
    return Completion(
        # JSON may contain lone surrogates, which UTF-8 files cannot.
        (text or "").encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"),
        "length" if reason in CUT_REASONS else reason,
        *(count if isinstance(count, int) and count >= 0 else 0 for count in counts),
    )


def _text_of(message: Mapping[str, Any]) -> str | None:
    content, refusal, texts = message.get("content"), message.get("refusal"), list[str]()
    for part in content if isinstance(content, list) else [] if content is None else [content]:
        kind = str(part.get("type")) if isinstance(part, Mapping) else ""
        text = part if isinstance(part, str) else part.get("text") if kind in _TEXT_PARTS else None
        if isinstance(text, str):
            texts.append(text)
        elif kind == "refusal":
            refusal = refusal or part
        elif kind not in _REASONING_PARTS:
            raise SamplerError("server", f"a completion with a part that is no text: {part!r:.200}")
    if refusal:
        raise SamplerError("refusal", f"the model refused: {refusal!r:.200}")
    return "".join(texts) if texts else None


def _check_completed(text: str | None, reason: str, message: Mapping[str, Any]) -> None:
    if reason in _FILTER_REASONS:
        raise SamplerError("refusal", f"the endpoint's filter withheld the completion ({reason})")
    if reason in _ERROR_REASONS:
        raise SamplerError("server", f"the endpoint broke off the completion (finish_reason: {reason})")
    if text is not None and text.strip():
        return
    if message.get("tool_calls") or message.get("function_call"):
        raise SamplerError("server", "the model called tools instead of answering in text")
    if reason in CUT_REASONS:
        why = "all of max_tokens was spent before any text (on reasoning?). Raise sampling.max_tokens"
        raise SamplerError("server", why)
    is_spoken = text is not None and reason in _NATURAL_ENDS
    if not is_spoken or message.get("reasoning_content") or message.get("reasoning"):
        raise SamplerError("server", f"a completion without text (finish_reason: {reason})")
