"""`webhooks.*`: webhook endpoints of a project. A secret is returned once."""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field

from assay.records.webhook import WebhookCreated, WebhookEntry
from assay.serving.api_error import ApiError
from assay.serving.idempotency_keys import Retry
from assay.serving.ids import new_id
from assay.serving.openai.app_state import AppState, connected_retry, project_of
from assay.serving.openai.bodies import StrictBody, parsed, request_sha256
from assay.serving.openai.openapi import QUERY_CHECKED, JsonBody, declares
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


class NewWebhookBody(StrictBody):
    """`webhooks.create`."""

    name: _Title
    url: str
    event_types: list[str] = Field(min_length=1)


class ChangedWebhookBody(StrictBody):
    """`webhooks.update`."""

    name: _Title | None = None
    url: str | None = None
    event_types: list[str] | None = Field(default=None, min_length=1)


class RotationBody(StrictBody):
    """`webhooks.rotate_secret`."""

    keep_old_secret_active_for_24_hours: bool = False


class TrialBody(StrictBody):
    """`webhooks.test`."""

    event_type: str


def webhook_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router, webhooks = APIRouter(tags=["webhooks"], dependencies=QUERY_CHECKED), app.outbox.webhooks

    @router.get("/webhook_event_types")
    def list_event_types() -> dict[str, Any]:
        """List event types."""
        return {"object": "list", "data": list(EVENT_TYPES)}

    @router.post("/webhook_endpoints", openapi_extra=declares(body=NewWebhookBody))
    def create(request: Request, body: JsonBody) -> dict[str, Any]:
        """Create a webhook; its secret is shown once."""
        value, project = body.json(), project_of(request)
        new = parsed(NewWebhookBody, value)
        sha256 = request_sha256(project, "webhooks.create", value)
        return _with_secret(_created(app, project, new, sha256, connected_retry(request)))

    @router.get("/webhook_endpoints", openapi_extra=declares("after", "limit"))
    def list_webhooks(request: Request) -> dict[str, Any]:
        """List webhooks, newest first."""
        project = project_of(request)

        def shown(webhook_id: str) -> dict[str, Any] | None:
            state = webhooks.find(webhook_id, project)
            return None if state is None else _shape(state)

        return page_of(webhooks.ids(), shown, request.query_params)

    @router.get("/webhook_endpoints/{webhook_id}")
    def retrieve(request: Request, webhook_id: str) -> dict[str, Any]:
        """Retrieve a webhook and its last messages."""
        state = webhooks.found(webhook_id, project_of(request))
        return {**_shape(state), "x_assay": {"messages": _messages(app, webhook_id)}}

    @router.post("/webhook_endpoints/{webhook_id}", openapi_extra=declares(body=ChangedWebhookBody))
    def update(request: Request, webhook_id: str, body: JsonBody) -> dict[str, Any]:
        """Update a webhook."""
        webhooks.found(webhook_id, project_of(request))
        changed = body.parsed(ChangedWebhookBody)
        _check_url(app, changed.url)
        types = None if changed.event_types is None else _types(changed.event_types)
        return _shape(webhooks.update(webhook_id, name=changed.name, url=changed.url, event_types=types))

    @router.delete("/webhook_endpoints/{webhook_id}")
    def delete(request: Request, webhook_id: str) -> dict[str, Any]:
        """Delete a webhook."""
        webhooks.found(webhook_id, project_of(request))
        webhooks.delete(webhook_id)
        return {"id": webhook_id, "object": "webhook_endpoint.deleted", "deleted": True}

    @router.post("/webhook_endpoints/{webhook_id}/rotate_secret", openapi_extra=declares(body=RotationBody))
    def rotate_secret(request: Request, webhook_id: str, body: JsonBody) -> dict[str, Any]:
        """Replace the signing secret; the new one is shown once."""
        webhooks.found(webhook_id, project_of(request))
        keeps_old = body.parsed(RotationBody).keep_old_secret_active_for_24_hours
        return _with_secret(webhooks.rotate(webhook_id, keeps_old=keeps_old))

    @router.post("/webhook_endpoints/{webhook_id}/test", openapi_extra=declares(body=TrialBody))
    def test(request: Request, webhook_id: str, body: JsonBody) -> dict[str, Any]:
        """Send a test event now, without retries."""
        state = webhooks.found(webhook_id, project_of(request))
        (event_type,) = _types([body.parsed(TrialBody).event_type])
        sent = {"event_type": event_type, "status_code": _trial(app, state, event_type), "success": True}
        return {"object": "webhook_endpoint.test", **sent, "webhook_endpoint_id": webhook_id}

    return router


def _created(app: AppState, project: str, body: NewWebhookBody, sha256: str, retry: Retry) -> WebhookState:
    """Create a webhook. A retry gets that of the first request with a new secret."""
    types = _types(body.event_types)
    _check_url(app, body.url)
    now_s, webhooks = app.clock.now_s(), app.outbox.webhooks
    is_new: list[bool] = []

    def put(entry: WebhookEntry) -> WebhookState:
        state = webhooks.put(entry)
        is_new.append(state.created == entry)
        return state

    created = WebhookCreated(
        webhook_id=new_id("webhook", now_s),
        project=project,
        name=body.name,
        url=body.url,
        event_types=types,
        secret=new_secret(),
        at_s=now_s,
        request_sha256=sha256,
    )
    state = webhooks.create_once(created, retry, put)
    return state if is_new == [True] else webhooks.rotate(state.created.webhook_id, keeps_old=False)


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
            "id": message.created.message_id,
            "event_type": message.created.event_type,
            "tries": message.num_tries,
            "response": message.response,
            "status": message.outcome,
        }
        for message in reversed(found)
    ]
