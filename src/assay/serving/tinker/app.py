"""The Tinker API as an ASGI application under `/api/v1`: routes, bodies and errors.

It is mounted beside the OpenAI API, behind the same authentication. The SDK's key is `tml-` and a key of this server.

The SDK sends a request again for five minutes after 408, 409, 429 and 5xx, and gives up at once after anything else.
An error that would recur is therefore 400, 403, 404 or 410. A route acknowledges a request only when it is durable.
"""

import logging
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from assay.base.errors import StoreError
from assay.serving.api_error import ApiError, not_found, store_in_trouble
from assay.serving.openai.app_state import AppState, key_id_of, project_of
from assay.serving.openai.bodies import RawBody, parsed
from assay.serving.sessions.request_log import ChangedRequestError
from assay.serving.tinker import catalog, sampling, training
from assay.serving.tinker.bodies import (
    CreateModel,
    CreateSamplingSession,
    CreateSession,
    FinishSession,
    GetInfo,
    Heartbeat,
    RetrieveFuture,
    Sample,
    TinkerBody,
    WeightsInfo,
)
from assay.serving.tinker.futures import FutureWatch
from assay.serving.tinker.messages import parse_message
from assay.serving.tinker.training import TinkerCall

TINKER_PATH = "/api/v1"
MAX_BODY_BYTES = 64 << 20
"""The SDK sends batches in parts of 5 MB; a single sequence may be longer."""
FORWARD_BACKWARD = "ForwardBackwardRequest"
CLIENT_CONFIG = {
    "parallel_fwdbwd_chunks": True,
    "proto_compress_fwdbwd": True,
    "sample_use_retrieve_futures": False,
    "sample_join_sampling_session": False,
    "custom_loss_server_side": False,
    "pjwt_auth_enabled": False,
}
"""Features of the SDK that the server switches on or off."""
OLDEST_SDK = (0, 25)
"""The first version that sends batches as protobuf."""
_TROUBLE_PAUSE_S = 1.0
"""The SDK asks for a result again at once after 5xx."""

Endpoint = Callable[[TinkerCall], Any]


def with_tinker(openai_api: ASGIApp, app: AppState) -> ASGIApp:
    """Return an application that serves both APIs."""
    tinker_api = make_tinker_api(app)

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        is_tinker = scope["type"] == "http" and scope["path"].startswith(f"{TINKER_PATH}/")
        await (tinker_api if is_tinker else openai_api)(scope, receive, send)

    return respond


def make_tinker_api(app: AppState) -> ASGIApp:
    """Return the application without authentication."""
    posts: dict[str, tuple[type[TinkerBody] | None, Endpoint]] = {
        "create_session": (CreateSession, training.create_session),
        "session_heartbeat": (Heartbeat, training.heartbeat),
        "sessions/{session_id}/finish": (FinishSession, training.finish_session),
        "create_model": (CreateModel, training.create_model),
        "load_weights": (None, training.load_weights),
        "get_info": (GetInfo, training.get_info),
        "optim_step": (None, lambda call: training.numbered(call, "optim_step")),
        "save_weights": (None, lambda call: training.numbered(call, "save_weights")),
        "save_weights_for_sampler": (None, sampling.save_weights_for_sampler),
        "create_sampling_session": (CreateSamplingSession, sampling.create_sampling_session),
        "asample": (Sample, sampling.sample),
        "weights_info": (WeightsInfo, catalog.weights_info),
    }
    gets: dict[str, Endpoint] = {
        "get_server_capabilities": catalog.capabilities,
        "samplers/{sampler_id}": sampling.get_sampler,
        "training_runs/{run_id}": catalog.training_run,
        "training_runs/{run_id}/checkpoints": catalog.checkpoints,
    }
    checkpoint = "training_runs/{run_id}/checkpoints/{checkpoint_id:path}"
    routes = [
        *(_route(app, path, endpoint, "POST", body_class) for path, (body_class, endpoint) in posts.items()),
        *(_route(app, path, endpoint, "GET") for path, endpoint in gets.items()),
        _route(app, checkpoint, catalog.delete_checkpoint, "DELETE"),
        Route(f"{TINKER_PATH}/forward_backward", _forward_backward(app), methods=["POST"]),
        Route(f"{TINKER_PATH}/retrieve_future", _retrieve_future(app), methods=["POST"]),
        Route(f"{TINKER_PATH}/client/config", _client_config, methods=["POST"]),
        Route(f"{TINKER_PATH}/telemetry", _telemetry, methods=["POST"]),
    ]
    handlers: dict[Any, Any] = {
        ApiError: _refused,
        ChangedRequestError: _changed,
        ClientDisconnect: _gone,
        StoreError: _store_in_trouble,
        404: _not_served,
        405: _not_served,
        Exception: _unforeseen,
    }
    api = Starlette(routes=routes, exception_handlers=handlers)
    api.router.redirect_slashes = False  # the redirect would use the client's Host header
    return api


def _route(
    app: AppState, path: str, endpoint: Endpoint, method: str, body_class: type[TinkerBody] | None = None
) -> Route:
    async def respond(request: Request) -> Response:
        raw = RawBody(await _read_body(request))

        def work() -> Any:
            tree = raw.json()
            if not isinstance(tree, dict):
                raise ApiError("The body must be a JSON object.", code="invalid_json")
            body = None if body_class is None else parsed(body_class, tree)
            return endpoint(TinkerCall(app, project_of(request), key_id_of(request), body, tree, request.path_params))

        tree = await anyio.to_thread.run_sync(work)
        return Response(status_code=204) if tree is None else JSONResponse(tree)

    return Route(f"{TINKER_PATH}/{path}", respond, methods=[method])


def _forward_backward(app: AppState) -> Callable[[Request], Any]:
    async def respond(request: Request) -> Response:
        if "protobuf" not in request.headers.get("content-type", ""):
            raise _too_old()
        data = await _read_body(request)

        def work() -> Any:
            message = parse_message(FORWARD_BACKWARD, data)
            call = TinkerCall(app, project_of(request), key_id_of(request), message, {}, request.path_params)
            return training.forward_backward(call)

        return JSONResponse(await anyio.to_thread.run_sync(work))

    return respond


def _retrieve_future(app: AppState) -> Callable[[Request], Any]:
    watch = FutureWatch(app)

    async def respond(request: Request) -> Response:
        body = RawBody(await _read_body(request)).parsed(RetrieveFuture)
        try:
            return await watch.respond(body.request_id, project_of(request))
        except StoreError:
            await anyio.sleep(_TROUBLE_PAUSE_S)
            raise

    return respond


async def _client_config(request: Request) -> Response:
    tree = RawBody(await _read_body(request)).json()
    version = str(tree.get("sdk_version", "")) if isinstance(tree, dict) else ""
    digits = [int(part) for part in version.split(".")[:2] if part.isdecimal()]
    if len(digits) == 2 and (*digits,) < OLDEST_SDK:
        raise _too_old(version)
    return JSONResponse(CLIENT_CONFIG)


async def _telemetry(request: Request) -> Response:
    await _read_body(request)
    return JSONResponse({"status": "accepted"})


async def _read_body(request: Request) -> bytes:
    """Return the body, decompressed. Raises `ApiError` if it is too long."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding not in ("identity", "zstd"):
        raise ApiError(f"Content-Encoding {encoding!r:.40} is not served. Send zstd, or no encoding.")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
        raise _too_long()
    data = bytearray()
    async for block in request.stream():
        data += block
        if len(data) > MAX_BODY_BYTES:
            raise _too_long()
    return bytes(data) if encoding == "identity" else await anyio.to_thread.run_sync(_decompressed, data)


def _decompressed(data: bytearray) -> bytes:
    import zstandard

    try:
        with zstandard.ZstdDecompressor(max_window_size=MAX_BODY_BYTES).stream_reader(bytes(data)) as reader:
            found = reader.read(MAX_BODY_BYTES + 1)
    except zstandard.ZstdError as error:
        raise ApiError(f"The body is not zstd data: {error}. Send it again.", code="invalid_zstd") from None
    if len(found) > MAX_BODY_BYTES:
        raise _too_long()
    return bytes(found)


def _too_long() -> ApiError:
    text = f"The body is longer than {MAX_BODY_BYTES >> 20} MiB. Send fewer or shorter sequences in a request."
    return ApiError(text, code="body_too_long")


def _too_old(version: str = "") -> ApiError:
    found = f"{version} of the SDK" if version else "The SDK"
    text = (
        f"{found} sends batches as JSON, which is not served: pip install 'tinker>={'.'.join(map(str, OLDEST_SDK))}'."
    )
    return ApiError(text, code="sdk_too_old")


def _refused(_: Request, error: ApiError) -> Response:
    category = "user" if error.status < 500 else "server"
    tree = {"error": error.message, "category": category, "param": error.param, "code": error.code}
    return JSONResponse(tree, error.status, error.headers)


def _changed(request: Request, error: ChangedRequestError) -> Response:
    return _refused(request, ApiError(str(error), code="changed_request"))


def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=499)


def _store_in_trouble(request: Request, error: StoreError) -> Response:
    return _refused(request, store_in_trouble(error))


def _not_served(request: Request, _: Exception) -> Response:
    name = f"{request.method} {request.url.path}"
    error = not_found("route", name)
    error.message = f"{name:.200} is not served here. docs/tinker.md lists what is."
    return _refused(request, error)


def _unforeseen(request: Request, error: Exception) -> Response:
    logging.getLogger("assay.serving").error("%s %s", request.method, request.url.path, exc_info=error)
    return _refused(request, ApiError("Internal server error.", status=500))
