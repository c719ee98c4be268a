"""`admin.organization.*`: requires an admin key (see `auth_middleware`); changes record the key's id."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, Request

from assay.records.service_account import ServiceAccountCreated
from assay.serving.admin.accounts import AccountState
from assay.serving.admin.audit import AuditLine, audit_lines
from assay.serving.api_error import ApiError, not_found
from assay.serving.idempotency_keys import REMEMBERED_S, Retry
from assay.serving.ids import new_id
from assay.serving.keys import KeyState
from assay.serving.openai.admin.bodies import AccountBody, AdminKeyBody, ProjectBody, listed_query
from assay.serving.openai.admin.costs import cost_routes
from assay.serving.openai.admin.objects import (
    account_object,
    admin_key_object,
    audit_object,
    key_object,
    new_account_object,
    project_object,
)
from assay.serving.openai.admin.policy_routes import active_project, found_project, nowhere, policy_routes
from assay.serving.openai.app_state import AppState, connected_retry, key_id_of
from assay.serving.openai.bodies import NoBody, parsed, request_sha256
from assay.serving.openai.openapi import QUERY_CHECKED, JsonBody, declares
from assay.serving.openai.pages import page_of


def admin_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/organization", tags=["admin"])
    checked = APIRouter(dependencies=QUERY_CHECKED)
    _add_projects(checked, app)
    _add_accounts(checked, app)
    _add_keys(checked, app)
    _add_admin_keys(checked, app)
    router.include_router(checked)
    _add_audit(router, app)
    router.include_router(policy_routes(app))
    router.include_router(cost_routes(app))
    return router


def _add_projects(router: APIRouter, app: AppState) -> None:
    @router.post("/projects", openapi_extra=declares(body=ProjectBody))
    def create(request: Request, body: JsonBody) -> dict[str, Any]:
        """Create a project."""
        return project_object(app.projects.create(body.parsed(ProjectBody).name, by=key_id_of(request)))

    @router.get("/projects", openapi_extra=declares("after", "limit", "include_archived"))
    def list_projects(request: Request) -> dict[str, Any]:
        """List projects; archived ones only with `include_archived`."""
        query = request.query_params
        with_archived = query.get("include_archived", "false") == "true"

        def shown(project: str) -> dict[str, Any] | None:
            state = app.projects.find(project)
            is_shown = state is not None and (with_archived or state.archived is None)
            return project_object(state) if is_shown and state is not None else None

        return page_of(app.projects.ids(), shown, query)

    @router.get("/projects/{project_id}")
    def retrieve(project_id: str) -> dict[str, Any]:
        """Retrieve a project."""
        return project_object(found_project(app, project_id))

    @router.post("/projects/{project_id}", openapi_extra=declares(body=ProjectBody))
    def update(request: Request, project_id: str, body: JsonBody) -> dict[str, Any]:
        """Rename a project."""
        name = body.parsed(ProjectBody).name
        active_project(app, project_id)
        return project_object(app.projects.rename(project_id, name, by=key_id_of(request)))

    @router.post("/projects/{project_id}/archive", openapi_extra=declares(body=NoBody))
    def archive(request: Request, project_id: str, body: JsonBody) -> dict[str, Any]:
        """Archive a project and revoke its keys."""
        body.parsed(NoBody)
        by = key_id_of(request)
        found_project(app, project_id)
        state = app.projects.archive(project_id, by=by)
        _revoke(app, [key for key in app.keys.all() if key.created.project == project_id], by)
        return project_object(state)


def _add_accounts(router: APIRouter, app: AppState) -> None:
    @router.post("/projects/{project_id}/service_accounts", openapi_extra=declares(body=AccountBody))
    def create_account(request: Request, project_id: str, body: JsonBody) -> dict[str, Any]:
        """Create a service account and a key, which is shown once."""
        value, by = body.json(), key_id_of(request)
        account = parsed(AccountBody, value)
        sha256 = request_sha256(by, f"service_accounts.create {project_id}", value)
        return _new_account(app, project_id, account, sha256, connected_retry(request), by)

    @router.get("/projects/{project_id}/service_accounts", openapi_extra=declares("after", "limit"))
    def list_accounts(request: Request, project_id: str) -> dict[str, Any]:
        """List the service accounts of a project."""
        found_project(app, project_id)

        def shown(account_id: str) -> dict[str, Any] | None:
            state = app.accounts.find(account_id, project_id)
            return None if state is None else account_object(state)

        return page_of(app.accounts.ids(), shown, request.query_params)

    @router.get("/projects/{project_id}/service_accounts/{account_id}")
    def retrieve_account(project_id: str, account_id: str) -> dict[str, Any]:
        """Retrieve a service account."""
        return account_object(_account(app, project_id, account_id))

    @router.delete("/projects/{project_id}/service_accounts/{account_id}")
    def delete_account(request: Request, project_id: str, account_id: str) -> dict[str, Any]:
        """Delete a service account and revoke its keys."""
        _account(app, project_id, account_id)
        by = key_id_of(request)
        app.accounts.delete(account_id, by=by)
        _revoke(app, _keys_of(app, account_id), by)
        return {"id": account_id, "object": "organization.project.service_account.deleted", "deleted": True}


def _add_keys(router: APIRouter, app: AppState) -> None:
    def shown(state: KeyState) -> dict[str, Any]:
        account_id = state.created.service_account
        account = None if account_id is None else app.accounts.find(account_id, state.created.project)
        return key_object(state, account)

    @router.get("/projects/{project_id}/api_keys", openapi_extra=declares("after", "limit", "owner_project_access"))
    def list_keys(request: Request, project_id: str) -> dict[str, Any]:
        """List the valid keys of a project."""
        query = request.query_params
        access = query.get("owner_project_access", "active")
        if access not in ("active", "inactive"):
            raise ApiError(
                f"owner_project_access must be 'active' or 'inactive', not {access!r:.40}.",
                param="owner_project_access",
                code="invalid_value",
            )
        found_project(app, project_id)
        keys = {key.created.key_id: key for key in _open_keys(app, project_id) if access == "active"}
        return page_of(keys, lambda key_id: shown(keys[key_id]), query)

    @router.get("/projects/{project_id}/api_keys/{key_id}")
    def retrieve_key(project_id: str, key_id: str) -> dict[str, Any]:
        """Retrieve a key, without its secret."""
        return shown(_key(app, project_id, key_id))

    @router.delete("/projects/{project_id}/api_keys/{key_id}")
    def delete_key(request: Request, project_id: str, key_id: str) -> dict[str, Any]:
        """Revoke a key."""
        _revoke(app, [_key(app, project_id, key_id)], key_id_of(request))
        return {"id": key_id, "object": "organization.project.api_key.deleted", "deleted": True}


def _add_admin_keys(router: APIRouter, app: AppState) -> None:
    @router.post("/admin_api_keys", openapi_extra=declares(body=AdminKeyBody))
    def create_admin_key(request: Request, body: JsonBody) -> dict[str, Any]:
        """Create an admin key, which is shown once."""
        value, by = body.json(), key_id_of(request)
        key = parsed(AdminKeyBody, value)
        sha256 = request_sha256(by, "admin_api_keys.create", value)
        return _new_admin_key(app, key, sha256, connected_retry(request), by)

    @router.get("/admin_api_keys", openapi_extra=declares("after", "limit", "order"))
    def list_admin_keys(request: Request) -> dict[str, Any]:
        """List the valid admin keys."""
        keys = {key.created.key_id: key for key in _open_keys(app, None)}
        return page_of(keys, lambda key_id: admin_key_object(keys[key_id]), request.query_params)

    @router.get("/admin_api_keys/{key_id}")
    def retrieve_admin_key(key_id: str) -> dict[str, Any]:
        """Retrieve an admin key, without its secret."""
        return admin_key_object(_key(app, None, key_id))

    @router.delete("/admin_api_keys/{key_id}")
    def delete_admin_key(request: Request, key_id: str) -> dict[str, Any]:
        """Revoke an admin key."""
        _revoke(app, [_key(app, None, key_id)], key_id_of(request))
        return {"id": key_id, "object": "organization.admin_api_key.deleted", "deleted": True}


_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
_MOMENTS = tuple(f"effective_at[{name}]" for name in _COMPARED)
_MANY = ("actor_ids", "event_types", "project_ids", "resource_ids")


def _add_audit(router: APIRouter, app: AppState) -> None:
    @router.get("/audit_logs", openapi_extra=declares("after", "limit", *_MOMENTS, *_MANY))
    def list_audit_logs(request: Request) -> dict[str, Any]:
        """List changes, newest first."""
        query = listed_query(request, _MANY)
        states = [state for id_ in app.projects.ids() if (state := app.projects.find(id_)) is not None]
        names = {state.created.project: state.name for state in states}
        lines = {
            line.line_id: line
            for line in audit_lines(states, app.accounts.all(), app.keys.all())
            if _matches(line, query)
        }
        single = {name: query[name][0] for name in ("after", "limit") if name in query}
        return page_of(lines, lambda line_id: audit_object(lines[line_id], names), single)


def _matches(line: AuditLine, query: Mapping[str, list[str]]) -> bool:
    facts = {"actor_ids": line.by, "event_types": line.type, "project_ids": line.project, "resource_ids": line.resource}
    if any(name in query and fact not in query[name] for name, fact in facts.items()):
        return False
    for name, compare in _COMPARED.items():
        key = f"effective_at[{name}]"
        if key not in query:
            continue
        (text,) = query[key]
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise ApiError(
                f"{key} must be an integer Unix time in seconds, not {text!r:.40}.", param=key, code="invalid_value"
            )
        if not compare(int(line.at_s), int(text)):
            return False
    return True


def _account(app: AppState, project_id: str, account_id: str) -> AccountState:
    found_project(app, project_id)
    return app.accounts.found(account_id, project_id)


def _key(app: AppState, project_id: str | None, key_id: str) -> KeyState:
    """Return a valid key of a project, or an admin key (None)."""
    if project_id is not None:
        found_project(app, project_id)
    state = next((key for key in _open_keys(app, project_id) if key.created.key_id == key_id), None)
    if state is None:
        raise nowhere("key", key_id, "key_id") if project_id is None else not_found("key", key_id)
    return state


def _open_keys(app: AppState, project_id: str | None) -> list[KeyState]:
    """Return the valid keys of a project, or the admin keys (None)."""
    now_s = app.clock.now_s()
    return [
        key
        for key in app.keys.all()
        if key.opens(now_s) and (None if "admin" in key.created.scopes else key.created.project) == project_id
    ]


def _keys_of(app: AppState, account_id: str) -> list[KeyState]:
    return [key for key in app.keys.all() if key.created.service_account == account_id]


def _revoke(app: AppState, keys: list[KeyState], by: str) -> None:
    for key in keys:
        app.keys.revoke(key.created.key_id, by=by)


def _new_account(
    app: AppState, project_id: str, body: AccountBody, sha256: str, retry: Retry, by: str
) -> dict[str, Any]:
    """Create an account and a key. A retry gets the account of the first request with a new key, because the
    first key was never shown; it is revoked."""
    active_project(app, project_id)
    if body.create_service_account_only and body.expires_in_seconds is not None:
        raise ApiError(
            "expires_in_seconds applies to the key, but create_service_account_only creates none. Remove one of them.",
            param="expires_in_seconds",
            code="invalid_value",
        )
    now_s = app.clock.now_s()
    created = ServiceAccountCreated(
        account_id=new_id("svcacct", now_s),
        project=project_id,
        name=body.name,
        has_role=not body.create_service_account_only,
        at_s=now_s,
        by=by,
        request_sha256=sha256,
    )
    state = app.accounts.create_once(created, retry)
    if body.create_service_account_only:
        return new_account_object(state, None)
    _revoke(app, _keys_of(app, state.created.account_id), by)
    key = app.keys.make(
        project=project_id,
        name=body.name,
        scopes=("read", "write"),
        lives_s=body.expires_in_seconds,
        service_account=state.created.account_id,
        by=by,
    )
    return new_account_object(state, key)


def _new_admin_key(app: AppState, body: AdminKeyBody, sha256: str, retry: Retry, by: str) -> dict[str, Any]:
    """Create a key. A retry revokes the key of the first request, because it was never shown."""
    if retry.number:
        since_s = app.clock.now_s() - REMEMBERED_S
        lost_keys = [
            open_key
            for open_key in _open_keys(app, None)
            if open_key.created.request_sha256 == sha256 and open_key.created.at_s >= since_s
        ]
        _revoke(app, lost_keys[-1:], by)
    key = app.keys.make(
        project="default",
        name=body.name,
        scopes=("admin",),
        lives_s=body.expires_in_seconds,
        by=by,
        request_sha256=sha256,
    )
    return {**admin_key_object(KeyState(key.created)), "value": key.secret}
