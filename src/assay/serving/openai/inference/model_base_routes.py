"""A base URL for each model, `/x/models/NAME/v1`, and its tokenizer beside it: for tools that ask one model and
find the tokenizer below the same address.

    /x/models/NAME/v1/completions, /v1/chat/completions        as below /v1; `model` may be left out
    /x/models/NAME/tokenize, /detokenize, /tokenizer_info      text to tokens, tokens to text, special tokens
"""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from assay.inference.protocol import Engine, EngineResponse, Ready, Tokenized, TokenizeRequest
from assay.serving.openai.bodies import parsed, read_json
from assay.serving.openai.inference.answers import only_answer
from assay.serving.openai.inference.asking import ask_model, model_of
from assay.serving.openai.inference.chat_routes import chat_answer
from assay.serving.openai.inference.completion_routes import completion_answer
from assay.serving.openai.inference.questions import ChatQuestion, CompletionQuestion, read_question
from assay.serving.openai.place import Place, query_of
from assay.serving.refusal import RefusedError


class _Text(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    prompt: str
    add_special_tokens: bool = True
    model: str | None = None


class _Tokens(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    tokens: list[int]
    model: str | None = None


def model_base_routes(place: Place) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/x/models/{name}", tags=["one model"])

    @router.post("/v1/completions")
    async def complete(request: Request, name: str) -> Response:
        """Go on with prompts."""
        query_of(request)
        asked = read_question(CompletionQuestion, await _of_model(place, request, name))
        return await completion_answer(place, request, asked)

    @router.post("/v1/chat/completions")
    async def chat(request: Request, name: str) -> Response:
        """Answer a conversation."""
        query_of(request)
        return await chat_answer(
            place, request, read_question(ChatQuestion, await _of_model(place, request, name))
        )

    @router.post("/tokenize")
    async def tokenize(request: Request, name: str) -> dict[str, Any]:
        """A text's tokens."""
        query_of(request)
        asked = parsed(_Text, await _of_model(place, request, name))
        ask = TokenizeRequest(text=asked.prompt, has_start=asked.add_special_tokens)

        async def spell(engine: Engine) -> tuple[EngineResponse, int]:
            return await only_answer(engine.stream, ask), engine.ready.window_tokens

        said, window = await ask_model(place, request, name, spell)
        assert isinstance(said, Tokenized) and said.tokens is not None
        return {"tokens": said.tokens, "count": len(said.tokens), "max_model_len": window}

    @router.post("/detokenize")
    async def detokenize(request: Request, name: str) -> dict[str, Any]:
        """The text of tokens."""
        query_of(request)
        asked = parsed(_Tokens, await _of_model(place, request, name))
        ask = TokenizeRequest(tokens=tuple(asked.tokens))
        said = await ask_model(place, request, name, lambda engine: only_answer(engine.stream, ask))
        assert isinstance(said, Tokenized)
        return {"prompt": said.text}

    @router.get("/tokenizer_info")
    async def tokenizer_info(request: Request, name: str) -> dict[str, Any]:
        """Special tokens, and how conversations are written."""
        query_of(request)

        async def describe(engine: Engine) -> Ready:
            return engine.ready

        ready = await ask_model(place, request, name, describe)
        return {
            "bos_token": ready.start_token,
            "eos_token": ready.end_token,
            "pad_token": None,
            "chat_template": ready.template,
            "model_max_length": ready.window_tokens,
            "kind": ready.kind,
        }

    return router


async def _of_model(place: Place, request: Request, name: str) -> Any:
    """The body, in which the model is that of the address; there is one."""
    await model_of(place, request, name)
    value = await read_json(request)
    if isinstance(value, dict) and value.setdefault("model", name) != name:
        raise RefusedError(
            f"This address is that of {name!r:.160}, and the body asks {value['model']!r:.160}.",
            param="model",
            code="invalid_value",
        )
    return value
