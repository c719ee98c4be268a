"""Complete responses of models as the SDK's types define them, for direct requests and batches."""

import base64
import struct
from typing import Any, NamedTuple

from assay.inference.protocol import (
    CompletionChunk,
    EmbedRequest,
    PromptInput,
    ScoreRequest,
    TokenizeRequest,
    TokenLogprob,
)
from assay.serving.api_error import ApiError
from assay.serving.engines.process import EngineProcess
from assay.serving.openai.inference.completion_objects import chat_choice, new_heading, text_choice, usage_object
from assay.serving.openai.inference.request_bodies import ChatRequest, CompletionRequest, EmbeddingRequest, prompts_of


class Echo(NamedTuple):
    """The prompt text and tokens before a completion; empty without `echo`."""

    text: str
    tokens: tuple[TokenLogprob, ...]
    num_tokens: int
    """Prompt tokens, used if no completion reports them."""


async def chat_completion(engine: EngineProcess, request: ChatRequest, *, now_s: float) -> dict[str, Any]:
    """`ChatCompletion`."""
    heading = new_heading("chat.completion", "chatcmpl", now_s, request.model, engine.ready.digest)
    prompt_tokens, pieces = await engine.generate(request.engine_request())
    choices = [chat_choice(pieces[index], has_logprobs=request.logprobs) for index in sorted(pieces)]
    usage = usage_object(sum(prompt_tokens), sum(piece.num_tokens for piece in pieces.values()))
    return {**heading, "choices": choices, "usage": usage}


async def text_completion(engine: EngineProcess, request: CompletionRequest, *, now_s: float) -> dict[str, Any]:
    """`Completion`."""
    heading = new_heading("text_completion", "cmpl", now_s, request.model, engine.ready.digest)
    echoes = await echoes_of(engine, request)
    prompt_tokens: tuple[int, ...] = ()
    pieces: dict[int, CompletionChunk] = {}
    if request.max_tokens:
        prompt_tokens, pieces = await engine.generate(request.engine_request())
    choices = []
    for index in range(len(request.prompts) * request.n):
        echo = echoes[index // request.n]
        piece = pieces.get(index, CompletionChunk(choice=index, text="", reason="length"))
        tokens = None if request.logprobs is None else (*echo.tokens, *piece.tokens)
        text = echo.text + piece.text
        choices.append(text_choice(index, text, tokens, request.logprobs or 0, piece.reason))
    num_prompt_tokens = sum(prompt_tokens or (echo.num_tokens for echo in echoes))
    usage = usage_object(num_prompt_tokens, sum(piece.num_tokens for piece in pieces.values()))
    return {**heading, "choices": choices, "usage": usage}


async def embeddings(engine: EngineProcess, request: EmbeddingRequest) -> dict[str, Any]:
    """`CreateEmbeddingResponse`."""
    response = await engine.embed(EmbedRequest(prompts=prompts_of(request.input, "input")))
    if request.dimensions not in (None, len(response.vectors[0])):
        raise ApiError(
            f"This model's embeddings have {len(response.vectors[0])} dimensions. Remove 'dimensions'.",
            param="dimensions",
            code="invalid_value",
        )
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, request.encoding_format)}
            for index, vector in enumerate(response.vectors)
        ],
        "model": request.model,
        "usage": {"prompt_tokens": response.num_tokens, "total_tokens": response.num_tokens},
        "x_assay": {"num_cut": response.num_cut},
    }


async def echoes_of(engine: EngineProcess, request: CompletionRequest) -> list[Echo]:
    """Return the echo of each prompt."""
    if not request.echo and request.max_tokens:
        return [Echo("", (), 0)] * len(request.prompts)
    scored: tuple[tuple[TokenLogprob, ...], ...] = ((),) * len(request.prompts)
    if request.echo and request.logprobs is not None:
        scored = (await engine.score(ScoreRequest(prompts=request.prompts, top_logprobs=request.logprobs))).prompts
    found = []
    for prompt, tokens in zip(request.prompts, scored, strict=True):
        text, num_tokens = await _prompt_text(engine, prompt)
        found.append(Echo(text if request.echo else "", tokens, num_tokens))
    return found


async def _prompt_text(engine: EngineProcess, prompt: PromptInput) -> tuple[str, int]:
    """Return a prompt's text and number of tokens."""
    if prompt.tokens is None:
        tokenized = await engine.tokenize(TokenizeRequest(text=prompt.text, has_start=True))
        return prompt.text or "", len(tokenized.tokens or ())
    detokenized = await engine.tokenize(TokenizeRequest(tokens=prompt.tokens))
    return detokenized.text or "", len(prompt.tokens)


def _encoded(vector: tuple[float, ...], form: str) -> Any:
    if form == "float":
        return list(vector)
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
