"""`webhooks.*`: webhook endpoints of a project. A secret is returned once."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from assay.records.webhook import WebhookCreated
from assay.serving.api_error import ApiError, not_found
from assay.serving.idempotency_keys import IdempotentRequest
from assay.serving.ids import new_id
from assay.serving.openai.app_state import AppState, connected_request, project_of, query_of
from assay.serving.openai.bodies import parsed, read_json, request_sha256
from assay.serving.openai.openapi import declares
from assay.serving.openai.pages import page_of
from assay.serving.webhooks.outbox import event_body
from assay.serving.webhooks.post import (
    AddressError,
    NotDeliveredError,
    addresses_of,
    post,
    resolved,
    signed_headers,
    target_of,
)
from assay.serving.webhooks.webhooks import EVENT_TYPES, WebhookState, new_secret

_SHOWN_MESSAGES = 20
_Title = Annotated[str, Field(min_length=1, max_length=255)]


class _WebhookBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class NewWebhookBody(_WebhookBody):
    """`webhooks.create`."""

    name: _Title
    url: str
    event_types: list[str] = Field(min_length=1)


class ChangedWebhookBody(_WebhookBody):
    """`webhooks.update`."""

    name: _Title | None = None
    url: str | None = None
    event_types: list[str] | None = Field(default=None, min_length=1)


class RotationBody(_WebhookBody):
    """`webhooks.rotate_secret`."""

    keep_old_secret_active_for_24_hours: bool = False


class TrialBody(_WebhookBody):
    """`webhooks.test`."""

    event_type: str


def webhook_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["webhooks"])
    _add_webhooks(router, app)
    _add_secrets(router, app)

    @router.get("/webhook_event_types")
    def list_event_types(request: Request) -> dict[str, Any]:
        """List event types."""
        query_of(request)
        return {"object": "list", "data": list(EVENT_TYPES)}

    return router


def _add_webhooks(router: APIRouter, app: AppState) -> None:
    webhooks = app.outbox.webhooks

    @router.post("/webhook_endpoints", openapi_extra=declares(body=NewWebhookBody))
    async def create(request: Request) -> dict[str, Any]:
        """Create a webhook; its secret is shown once."""
        query_of(request)
        value, project = await read_json(request), project_of(request)
        body = parsed(NewWebhookBody, value)
        create_request = await connected_request(request, request_sha256(project, "webhooks.create", value))
        return _with_secret(await run_in_threadpool(_created, app, body, create_request))

    @router.get("/webhook_endpoints", openapi_extra=declares("after", "limit"))
    def list_webhooks(request: Request) -> dict[str, Any]:
        """List webhooks, newest first."""
        query, project = query_of(request), project_of(request)

        def shown(webhook_id: str) -> dict[str, Any] | None:
            state = webhooks.find(webhook_id, project)
            return None if state is None else _shape(state)

        return page_of(webhooks.logs.ids(), shown, query, limit=20, max_limit=100)

    @router.get("/webhook_endpoints/{webhook_id}")
    def retrieve(request: Request, webhook_id: str) -> dict[str, Any]:
        """Retrieve a webhook and its last messages."""
        query_of(request)
        state = _found(app, request, webhook_id)
        return {**_shape(state), "x_assay": {"messages": _messages(app, webhook_id)}}

    @router.post("/webhook_endpoints/{webhook_id}", openapi_extra=declares(body=ChangedWebhookBody))
    async def update(request: Request, webhook_id: str) -> dict[str, Any]:
        """Update a webhook."""
        query_of(request)
        await run_in_threadpool(_found, app, request, webhook_id)
        body = parsed(ChangedWebhookBody, await read_json(request))

        def updated() -> WebhookState:
            _check_url(app, body.url)
            types = None if body.event_types is None else _types(body.event_types)
            return webhooks.update(webhook_id, name=body.name, url=body.url, event_types=types)

        return _shape(await run_in_threadpool(updated))

    @router.delete("/webhook_endpoints/{webhook_id}")
    def delete(request: Request, webhook_id: str) -> dict[str, Any]:
        """Delete a webhook."""
        query_of(request)
        _found(app, request, webhook_id)
        webhooks.delete(webhook_id)
        return {"id": webhook_id, "object": "webhook_endpoint.deleted", "deleted": True}


def _add_secrets(router: APIRouter, app: AppState) -> None:
    @router.post("/webhook_endpoints/{webhook_id}/rotate_secret", openapi_extra=declares(body=RotationBody))
    async def rotate_secret(request: Request, webhook_id: str) -> dict[str, Any]:
        """Replace the signing secret; the new one is shown once."""
        query_of(request)
        await run_in_threadpool(_found, app, request, webhook_id)
        body = parsed(RotationBody, await read_json(request))

        rotated = partial(app.outbox.webhooks.rotate, webhook_id, keeps_old=body.keep_old_secret_active_for_24_hours)
        return _with_secret(await run_in_threadpool(rotated))

    @router.post("/webhook_endpoints/{webhook_id}/test", openapi_extra=declares(body=TrialBody))
    async def test(request: Request, webhook_id: str) -> dict[str, Any]:
        """Send a test event now, without retries."""
        query_of(request)
        state = await run_in_threadpool(_found, app, request, webhook_id)
        body = parsed(TrialBody, await read_json(request))

        def tried() -> int:
            (event_type,) = _types([body.event_type])
            return _trial(app, state, event_type)

        return {
            "object": "webhook_endpoint.test",
            "event_type": body.event_type,
            "status_code": await run_in_threadpool(tried),
            "success": True,
            "webhook_endpoint_id": webhook_id,
        }


def _created(app: AppState, body: NewWebhookBody, request: IdempotentRequest) -> WebhookState:
    """Create a webhook. A retry gets that of the first request with a new secret."""
    types = _types(body.event_types)
    _check_url(app, body.url)
    now_s = app.clock.now_s()
    is_new: list[bool] = []

    def make(webhook_id: str) -> WebhookState:
        created = WebhookCreated(
            webhook_id=webhook_id,
            project=request.project,
            name=body.name,
            url=body.url,
            event_types=types,
            secret=new_secret(),
            at_s=now_s,
            request_sha256=request.sha256,
        )
        state = app.outbox.webhooks.put(created)
        is_new.append(state.created == created)
        return state

    state = app.webhook_idempotency.create_once(request, new_id("webhook", now_s), make)
    if is_new == [True]:
        return state
    return app.outbox.webhooks.rotate(state.created.webhook_id, keeps_old=False)


def _trial(app: AppState, state: WebhookState, event_type: str) -> int:
    now_s = app.clock.now_s()
    body = event_body(event_type, "ftjob-test", now_s)
    headers = signed_headers(new_id("message", now_s), body, state.secrets_at(now_s), now_s=now_s)
    try:
        return post(state.url, body, headers, app.webhook_hosts)
    except (AddressError, NotDeliveredError) as error:
        raise ApiError(f"Nothing was delivered: {error}", code="webhook_unreachable") from error


def _types(event_types: list[str]) -> tuple[str, ...]:
    for type_ in event_types:
        if type_ not in EVENT_TYPES:
            raise ApiError(
                f"Unknown event type {type_!r:.80}. Supported: {', '.join(EVENT_TYPES)}.",
                param="event_types",
                code="invalid_value",
            )
    return tuple(dict.fromkeys(event_types))


def _check_url(app: AppState, url: str | None) -> None:
    """Raise `ApiError` for an invalid URL. Addresses are checked again at each delivery."""
    if url is None:
        return
    try:
        addresses_of(target_of(url, app.webhook_hosts), app.webhook_hosts, resolved)
    except AddressError as error:
        raise ApiError(str(error), param="url", code="invalid_url") from error
    except NotDeliveredError:
        return  # it may resolve later


def _found(app: AppState, request: Request, webhook_id: str) -> WebhookState:
    state = app.outbox.webhooks.find(webhook_id, project_of(request))
    if state is None:
        raise not_found("webhook", webhook_id, param="webhook_endpoint_id")
    return state


def _shape(state: WebhookState) -> dict[str, Any]:
    """`WebhookEndpoint`."""
    return {
        "id": state.created.webhook_id,
        "object": "webhook_endpoint",
        "created_at": int(state.created.at_s),
        "updated_at": int(state.updated_s),
        "name": state.name,
        "url": state.url,
        "event_types": list(state.event_types),
        "signing_secret_hint": f"whsec_...{state.secret[-4:]}",
    }


def _with_secret(state: WebhookState) -> dict[str, Any]:
    """`WebhookEndpointWithSecret`."""
    return {**_shape(state), "signing_secret": state.secret}


def _messages(app: AppState, webhook_id: str) -> list[dict[str, Any]]:
    """Return the last messages, newest first."""
    found = [*app.outbox.of_webhook(webhook_id)][-_SHOWN_MESSAGES:]
    return [
        {
            "id": message.due.message_id,
            "event_type": message.due.event_type,
            "tries": message.num_tries,
            "response": message.response,
            "status": message.outcome,
        }
        for message in reversed(found)
    ]
