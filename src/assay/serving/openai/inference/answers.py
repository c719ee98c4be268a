"""What a model answers to a whole question, as the SDK's types have it: to a client that waits, or to a batch.

Who asks and for how long is not known here: `Saying` asks an engine one thing and says what it says.
"""

import base64
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, NamedTuple

from assay.inference.protocol import (
    CompletionChunk,
    Embedded,
    EmbedRequest,
    EngineRequest,
    EngineResponse,
    PromptInput,
    PromptsRead,
    Ready,
    Scored,
    ScoreRequest,
    Tokenized,
    TokenizeRequest,
    TokenLogprob,
)
from assay.serving.openai.inference.completion_shapes import TextChoice, chat_choice, new_heading, usage_shape
from assay.serving.openai.inference.questions import (
    ChatQuestion,
    CompletionQuestion,
    EmbeddingQuestion,
    prompts_of,
)
from assay.serving.refusal import RefusedError

Saying = Callable[[EngineRequest], AsyncGenerator[EngineResponse, None]]


class Whole(NamedTuple):
    """A completion that is done."""

    prompt_tokens: tuple[int, ...]
    choices: dict[int, CompletionChunk]
    """By its number, each in one piece."""

    @property
    def num_drawn(self) -> int:
        """Tokens of all choices."""
        return sum(choice.num_tokens for choice in self.choices.values())


class Echo(NamedTuple):
    """What stands before the completions of a prompt; nothing without `echo`."""

    text: str
    tokens: tuple[TokenLogprob, ...]
    num_tokens: int
    """Where no completion counts them."""


async def only_answer(saying: Saying, ask: EngineRequest) -> EngineResponse:
    """What an engine says that says one thing."""
    async with aclosing(saying(ask)) as answers:
        async for said in answers:
            return said
    raise AssertionError("an engine says something")


async def whole_answer(saying: Saying, ask: EngineRequest) -> Whole:
    """All of a completion."""
    prompt_tokens: tuple[int, ...] = ()
    choices: dict[int, CompletionChunk] = {}
    async with aclosing(saying(ask)) as answers:
        async for said in answers:
            if isinstance(said, PromptsRead):
                prompt_tokens = said.prompt_tokens
            elif isinstance(said, CompletionChunk):
                choices[said.choice] = said
    return Whole(prompt_tokens, choices)


async def chat_completion(saying: Saying, ready: Ready, asked: ChatQuestion, *, now_s: float) -> dict[str, Any]:
    """`ChatCompletion`."""
    heading = new_heading("chatcmpl", now_s, asked.model, ready.digest)
    whole = await whole_answer(saying, asked.ask())
    choices = [
        chat_choice(whole.choices[index], has_logprobs=asked.logprobs) for index in sorted(whole.choices)
    ]
    usage = usage_shape(sum(whole.prompt_tokens), whole.num_drawn)
    return {**heading.shape("chat.completion"), "choices": choices, "usage": usage}


async def text_completion(
    saying: Saying, ready: Ready, asked: CompletionQuestion, *, now_s: float
) -> dict[str, Any]:
    """`Completion`."""
    heading = new_heading("cmpl", now_s, asked.model, ready.digest)
    echoes = await echoes_of(saying, asked)
    whole = Whole((), {})
    if asked.max_tokens:
        whole = await whole_answer(saying, asked.ask())
    choices = []
    for index in range(len(asked.prompts) * asked.n):
        echo = echoes[index // asked.n]
        piece = whole.choices.get(index, CompletionChunk(choice=index, text="", reason="length"))
        tokens = None if asked.logprobs is None else (*echo.tokens, *piece.tokens)
        text = echo.text + piece.text
        choices.append(TextChoice(index, text, tokens, asked.logprobs or 0, piece.reason).shape())
    prompt_tokens = sum(whole.prompt_tokens or (echoe.num_tokens for echoe in echoes))
    usage = usage_shape(prompt_tokens, whole.num_drawn)
    return {**heading.shape("text_completion"), "choices": choices, "usage": usage}


async def embeddings(saying: Saying, asked: EmbeddingQuestion) -> dict[str, Any]:
    """`CreateEmbeddingResponse`."""
    said = await only_answer(saying, EmbedRequest(prompts=prompts_of(asked.input, "input")))
    assert isinstance(said, Embedded)
    if asked.dimensions not in (None, len(said.vectors[0])):
        raise RefusedError(
            f"This model's vectors have {len(said.vectors[0])} dimensions. Leave 'dimensions' out.",
            param="dimensions",
            code="invalid_value",
        )
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, asked.encoding_format)}
            for index, vector in enumerate(said.vectors)
        ],
        "model": asked.model,
        "usage": {"prompt_tokens": said.num_tokens, "total_tokens": said.num_tokens},
        "x_assay": {"num_cut": said.num_cut},
    }


async def echoes_of(saying: Saying, asked: CompletionQuestion) -> list[Echo]:
    """What is told of each prompt before its completions."""
    if not asked.echo and asked.max_tokens:
        return [Echo("", (), 0)] * len(asked.prompts)
    scored: tuple[tuple[TokenLogprob, ...], ...] = ((),) * len(asked.prompts)
    if asked.echo and asked.logprobs is not None:
        said = await only_answer(saying, ScoreRequest(prompts=asked.prompts, top_logprobs=asked.logprobs))
        assert isinstance(said, Scored)
        scored = said.prompts
    found = []
    for prompt, tokens in zip(asked.prompts, scored, strict=True):
        text, num_tokens = await _spelled(saying, prompt)
        found.append(Echo(text if asked.echo else "", tokens, num_tokens))
    return found


async def _spelled(saying: Saying, prompt: PromptInput) -> tuple[str, int]:
    """A prompt's text, and how many tokens it has."""
    if prompt.tokens is None:
        said = await only_answer(saying, TokenizeRequest(text=prompt.text, has_start=True))
        assert isinstance(said, Tokenized) and said.tokens is not None
        return prompt.text or "", len(said.tokens)
    said = await only_answer(saying, TokenizeRequest(tokens=prompt.tokens))
    assert isinstance(said, Tokenized)
    return said.text or "", len(prompt.tokens)


def _encoded(vector: tuple[float, ...], form: str) -> Any:
    if form == "float":
        return list(vector)
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
