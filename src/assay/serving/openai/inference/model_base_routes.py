"""A base URL per model, `/x/models/NAME/v1`, with its tokenizer, for tools that expect both at one address.

/x/models/NAME/v1/completions, /v1/chat/completions        as below /v1; `model` is optional
/x/models/NAME/tokenize, /detokenize, /tokenizer_info      tokenizer
"""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from assay.inference.protocol import Ready, TokenizeRequest
from assay.serving.api_error import ApiError
from assay.serving.engines.process import EngineProcess
from assay.serving.openai.app_state import AppState
from assay.serving.openai.bodies import RawBody, StrictBody, parsed
from assay.serving.openai.inference.completion_routes import completion_response
from assay.serving.openai.inference.engine_access import find_model, run_on_engine
from assay.serving.openai.inference.request_bodies import ChatRequest, CompletionRequest, parse_request
from assay.serving.openai.openapi import QUERY_CHECKED, JsonBody


class _Text(StrictBody):
    prompt: str
    add_special_tokens: bool = True
    model: str | None = None


class _Tokens(StrictBody):
    tokens: list[int]
    model: str | None = None


def model_base_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/x/models/{name}", tags=["one model"], dependencies=QUERY_CHECKED)

    @router.post("/v1/completions")
    async def complete(request: Request, name: str, body: JsonBody) -> Response:
        """Complete prompts."""
        value = await _of_model(app, request, name, body)
        return await completion_response(app, request, parse_request(CompletionRequest, value))

    @router.post("/v1/chat/completions")
    async def chat(request: Request, name: str, body: JsonBody) -> Response:
        """Complete a conversation."""
        value = await _of_model(app, request, name, body)
        return await completion_response(app, request, parse_request(ChatRequest, value))

    @router.post("/tokenize")
    async def tokenize(request: Request, name: str, body: JsonBody) -> dict[str, Any]:
        """Tokenize a text."""
        text = parsed(_Text, await _of_model(app, request, name, body))
        engine_request = TokenizeRequest(text=text.prompt, has_start=text.add_special_tokens)

        async def tokenize_text(engine: EngineProcess) -> dict[str, Any]:
            tokens = (await engine.tokenize(engine_request)).tokens or ()
            return {"tokens": tokens, "count": len(tokens), "max_model_len": engine.ready.window_tokens}

        return await run_on_engine(app, request, name, tokenize_text)

    @router.post("/detokenize")
    async def detokenize(request: Request, name: str, body: JsonBody) -> dict[str, Any]:
        """Detokenize tokens."""
        tokens = parsed(_Tokens, await _of_model(app, request, name, body)).tokens
        engine_request = TokenizeRequest(tokens=tuple(tokens))
        response = await run_on_engine(app, request, name, lambda engine: engine.tokenize(engine_request))
        return {"prompt": response.text}

    @router.get("/tokenizer_info")
    async def tokenizer_info(request: Request, name: str) -> dict[str, Any]:
        """Special tokens and chat template."""

        async def describe(engine: EngineProcess) -> Ready:
            return engine.ready

        ready = await run_on_engine(app, request, name, describe)
        return {
            "bos_token": ready.start_token,
            "eos_token": ready.end_token,
            "pad_token": None,
            "chat_template": ready.template,
            "model_max_length": ready.window_tokens,
            "kind": ready.kind,
        }

    return router


async def _of_model(app: AppState, request: Request, name: str, body: RawBody) -> Any:
    """Return the body with the address's model. Raises `ApiError` if there is no such model."""
    await find_model(app, request, name)
    value = body.json()
    if isinstance(value, dict) and value.setdefault("model", name) != name:
        raise ApiError(
            f"The URL names model {name!r:.160}, but the body names {value['model']!r:.160}.",
            param="model",
            code="invalid_value",
        )
    return value
