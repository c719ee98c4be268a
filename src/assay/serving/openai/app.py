"""The ASGI application: routes under `/v1`, and one envelope for all errors.

It imports no torch; worker processes train.
"""

import json
import logging
from collections.abc import Callable
from functools import partial

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import ASGIApp

from assay.base.clock import SystemClock
from assay.base.errors import StoreError
from assay.serving.api_error import ApiError, not_served, store_in_trouble
from assay.serving.files import FileDamagedError
from assay.serving.openai.admin.routes import admin_routes
from assay.serving.openai.app_state import BASE_PATH, AppState
from assay.serving.openai.auth_middleware import AuthMiddleware
from assay.serving.openai.batch_routes import batch_routes
from assay.serving.openai.evals.eval_routes import eval_routes
from assay.serving.openai.evals.run_routes import run_routes
from assay.serving.openai.file_routes import file_routes
from assay.serving.openai.grader_routes import grader_routes
from assay.serving.openai.inference.completion_routes import completion_routes
from assay.serving.openai.inference.decision_routes import decision_routes
from assay.serving.openai.inference.model_base_routes import model_base_routes
from assay.serving.openai.job_routes import job_routes
from assay.serving.openai.model_routes import model_routes
from assay.serving.openai.openapi import described, operation_name
from assay.serving.openai.permission_routes import permission_routes
from assay.serving.openai.upload_routes import upload_routes
from assay.serving.openai.webhook_routes import webhook_routes
from assay.store.objects import open_store

_OF_PROJECTS = (
    file_routes,
    upload_routes,
    job_routes,
    model_routes,
    grader_routes,
    eval_routes,
    run_routes,
    batch_routes,
    permission_routes,
    webhook_routes,
)
INFERENCE = (completion_routes, decision_routes, model_base_routes)
CLIENT_GONE = 499
"""Status of a response that nobody reads."""


def make_app(app: AppState, add_api: Callable[[ASGIApp, AppState], ASGIApp] = lambda api, app: api) -> ASGIApp:
    """Return the application with authentication. `add_api` adds other APIs of the server, which share it."""
    return AuthMiddleware(add_api(make_api(app), app), app.keys)


def make_api(app: AppState) -> FastAPI:
    """Return the application without authentication."""
    api = FastAPI(
        title="assay",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # the redirect would use the client's Host header
        openapi_url=f"{BASE_PATH}/openapi.json",
        generate_unique_id_function=operation_name,
    )
    api.openapi = partial(described, api)  # type: ignore[method-assign]
    for routes in (*_OF_PROJECTS, *INFERENCE, admin_routes):
        api.include_router(routes(app), prefix=BASE_PATH)
    api.add_exception_handler(ApiError, _refused)
    api.add_exception_handler(ClientDisconnect, _gone)
    api.add_exception_handler(HTTPException, _not_served)
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(StoreError, _store_in_trouble)
    api.add_exception_handler(FileDamagedError, _damaged)
    api.add_exception_handler(Exception, _unforeseen)
    return api


def openapi_text() -> str:
    """Return the OpenAPI document, as in `docs/openapi.json`."""
    nothing = AppState.of(open_store("memory:"), {}, SystemClock())
    return json.dumps(make_api(nothing).openapi(), indent=1, sort_keys=True) + "\n"


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.envelope(), error.status, error.headers)


def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


def _not_served(request: Request, _: Exception) -> Response:
    method, path = request.method, request.url.path
    # The client's base URL lacks /v1, or the client adds it twice.
    meant = f"{BASE_PATH}{path}" if not path.startswith(f"{BASE_PATH}/") else path.removeprefix(BASE_PATH)
    if path.startswith(f"{BASE_PATH}/") and path.endswith("/"):
        meant = path.rstrip("/")
    scope = {**request.scope, "path": meant}
    is_served = any(route.matches(scope)[0] is Match.FULL for route in request.app.router.routes)
    return _refused(request, not_served(f"{method} {path}", f"{method} {meant}" if is_served else None))


def _invalid(request: Request, error: Exception) -> Response:
    return _refused(request, ApiError(f"The request cannot be read: {error}"[:500]))


def _store_in_trouble(request: Request, error: Exception) -> Response:
    assert isinstance(error, StoreError)
    return _refused(request, store_in_trouble(error))


def _damaged(request: Request, error: Exception) -> Response:
    return _refused(request, ApiError(str(error), code="file_damaged"))


def _unforeseen(request: Request, error: Exception) -> Response:
    logging.getLogger("assay.serving").error("%s %s", request.method, request.url.path, exc_info=error)
    return _refused(request, ApiError("Internal server error.", status=500))
