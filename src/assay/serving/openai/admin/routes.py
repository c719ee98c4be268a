"""`admin.organization.*`: who asks has an admin key (`door`), and each change says whose it was."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from assay.records.service_account import ServiceAccountCreated
from assay.serving.admin.accounts import AccountState
from assay.serving.admin.audit import AuditLine, audit_lines
from assay.serving.admin.projects import ProjectState
from assay.serving.idempotency_keys import REMEMBERED_S, AskedFor
from assay.serving.ids import new_id
from assay.serving.keys import KeyState
from assay.serving.openai.admin.bodies import (
    AccountBody,
    AdminKeyBody,
    ProjectBody,
    listed_query,
)
from assay.serving.openai.admin.costs import cost_routes
from assay.serving.openai.admin.policy_routes import active_project, found_project, nowhere, policy_routes
from assay.serving.openai.admin.shapes import (
    account_shape,
    admin_key_shape,
    audit_shape,
    key_shape,
    new_account_shape,
    project_shape,
)
from assay.serving.openai.bodies import NoBody, parsed, read_json, request_sha256
from assay.serving.openai.declared import takes
from assay.serving.openai.pages import page_of
from assay.serving.openai.place import Place, asker_of, query_of, still_asked_for
from assay.serving.refusal import RefusedError, not_found

PAGE, MAX_PAGE = 20, 100


def admin_routes(place: Place) -> APIRouter:
    """All of them."""
    router = APIRouter(prefix="/organization", tags=["admin"])
    _add_projects(router, place)
    _add_accounts(router, place)
    _add_keys(router, place)
    _add_admin_keys(router, place)
    _add_audit(router, place)
    router.include_router(policy_routes(place))
    router.include_router(cost_routes(place))
    return router


def _add_projects(router: APIRouter, place: Place) -> None:
    @router.post("/projects", openapi_extra=takes(body=ProjectBody))
    async def create(request: Request) -> dict[str, Any]:
        """Create a project."""
        query_of(request)
        body = parsed(ProjectBody, await read_json(request))
        by = asker_of(request)
        return project_shape(await run_in_threadpool(lambda: place.projects.create(body.name, by=by)))

    @router.get("/projects", openapi_extra=takes("after", "limit", "include_archived"))
    def list_projects(request: Request) -> dict[str, Any]:
        """All projects; archived ones where they are asked for."""
        query = query_of(request)
        with_archived = query.get("include_archived", "false") == "true"

        def shown(project: str) -> dict[str, Any] | None:
            state = place.projects.find(project)
            is_shown = state is not None and (with_archived or state.archived is None)
            return project_shape(state) if is_shown and state is not None else None

        return page_of(place.projects.ids(), shown, query, limit=PAGE, max_limit=MAX_PAGE)

    @router.get("/projects/{project_id}")
    def retrieve(request: Request, project_id: str) -> dict[str, Any]:
        """One project."""
        query_of(request)
        return project_shape(found_project(place, project_id))

    @router.post("/projects/{project_id}", openapi_extra=takes(body=ProjectBody))
    async def update(request: Request, project_id: str) -> dict[str, Any]:
        """Call it otherwise."""
        query_of(request)
        body, by = parsed(ProjectBody, await read_json(request)), asker_of(request)

        def renamed() -> ProjectState:
            active_project(place, project_id)
            return place.projects.rename(project_id, body.name, by=by)

        return project_shape(await run_in_threadpool(renamed))

    @router.post("/projects/{project_id}/archive", openapi_extra=takes(body=NoBody))
    async def archive(request: Request, project_id: str) -> dict[str, Any]:
        """Nobody asks in its name any more: its keys open nothing from now on."""
        query_of(request)
        parsed(NoBody, await read_json(request))
        by = asker_of(request)

        def archived() -> ProjectState:
            found_project(place, project_id)
            state = place.projects.archive(project_id, by=by)
            _revoke(place, [each for each in place.keys.all() if each.created.project == project_id], by)
            return state

        return project_shape(await run_in_threadpool(archived))


def _add_accounts(router: APIRouter, place: Place) -> None:
    @router.post("/projects/{project_id}/service_accounts", openapi_extra=takes(body=AccountBody))
    async def create_account(request: Request, project_id: str) -> dict[str, Any]:
        """Create an account, and a key of it, which is shown this once."""
        query_of(request)
        value, by = await read_json(request), asker_of(request)
        body = parsed(AccountBody, value)
        asked = await still_asked_for(
            request, request_sha256(by, f"service_accounts.create {project_id}", value)
        )
        return await run_in_threadpool(_new_account, place, project_id, body, asked, by)

    @router.get("/projects/{project_id}/service_accounts", openapi_extra=takes("after", "limit"))
    def list_accounts(request: Request, project_id: str) -> dict[str, Any]:
        """All of a project."""
        query = query_of(request)
        found_project(place, project_id)

        def shown(account_id: str) -> dict[str, Any] | None:
            state = place.accounts.find(account_id, project_id)
            return None if state is None else account_shape(state)

        return page_of(place.accounts.shelf.ids(), shown, query, limit=PAGE, max_limit=MAX_PAGE)

    @router.get("/projects/{project_id}/service_accounts/{account_id}")
    def retrieve_account(request: Request, project_id: str, account_id: str) -> dict[str, Any]:
        """One account."""
        query_of(request)
        return account_shape(_account(place, project_id, account_id))

    @router.delete("/projects/{project_id}/service_accounts/{account_id}")
    def delete_account(request: Request, project_id: str, account_id: str) -> dict[str, Any]:
        """Delete an account: its keys open nothing from now on."""
        query_of(request)
        _account(place, project_id, account_id)
        by = asker_of(request)
        place.accounts.delete(account_id, by=by)
        _revoke(place, _keys_of(place, account_id), by)
        return {"id": account_id, "object": "organization.project.service_account.deleted", "deleted": True}


def _add_keys(router: APIRouter, place: Place) -> None:
    def shown(state: KeyState) -> dict[str, Any]:
        account_id = state.created.service_account
        account = None if account_id is None else place.accounts.find(account_id, state.created.project)
        return key_shape(state, account)

    @router.get(
        "/projects/{project_id}/api_keys", openapi_extra=takes("after", "limit", "owner_project_access")
    )
    def list_keys(request: Request, project_id: str) -> dict[str, Any]:
        """All keys of a project that open something."""
        query = query_of(request)
        access = query.get("owner_project_access", "active")
        if access not in ("active", "inactive"):
            raise RefusedError(
                f"owner_project_access is 'active' or 'inactive', not {access!r:.40}.",
                param="owner_project_access",
                code="invalid_value",
            )
        found_project(place, project_id)
        keys = {key.created.key_id: key for key in _open_keys(place, project_id) if access == "active"}
        return page_of(keys, lambda key_id: shown(keys[key_id]), query, limit=PAGE, max_limit=MAX_PAGE)

    @router.get("/projects/{project_id}/api_keys/{key_id}")
    def retrieve_key(request: Request, project_id: str, key_id: str) -> dict[str, Any]:
        """One key, without its secret."""
        query_of(request)
        return shown(_key(place, project_id, key_id))

    @router.delete("/projects/{project_id}/api_keys/{key_id}")
    def delete_key(request: Request, project_id: str, key_id: str) -> dict[str, Any]:
        """It opens nothing from now on."""
        query_of(request)
        _revoke(place, [_key(place, project_id, key_id)], asker_of(request))
        return {"id": key_id, "object": "organization.project.api_key.deleted", "deleted": True}


def _add_admin_keys(router: APIRouter, place: Place) -> None:
    @router.post("/admin_api_keys", openapi_extra=takes(body=AdminKeyBody))
    async def create_admin_key(request: Request) -> dict[str, Any]:
        """Create an admin key, which is shown this once."""
        query_of(request)
        value, by = await read_json(request), asker_of(request)
        body = parsed(AdminKeyBody, value)
        asked = await still_asked_for(request, request_sha256(by, "admin_api_keys.create", value))
        return await run_in_threadpool(_new_admin_key, place, body, asked, by)

    @router.get("/admin_api_keys", openapi_extra=takes("after", "limit", "order"))
    def list_admin_keys(request: Request) -> dict[str, Any]:
        """All that open something."""
        query = query_of(request)
        keys = {key.created.key_id: key for key in _open_keys(place, None)}
        return page_of(
            keys, lambda key_id: admin_key_shape(keys[key_id]), query, limit=PAGE, max_limit=MAX_PAGE
        )

    @router.get("/admin_api_keys/{key_id}")
    def retrieve_admin_key(request: Request, key_id: str) -> dict[str, Any]:
        """One, without its secret."""
        query_of(request)
        return admin_key_shape(_key(place, None, key_id))

    @router.delete("/admin_api_keys/{key_id}")
    def delete_admin_key(request: Request, key_id: str) -> dict[str, Any]:
        """It opens nothing from now on."""
        query_of(request)
        _revoke(place, [_key(place, None, key_id)], asker_of(request))
        return {"id": key_id, "object": "organization.admin_api_key.deleted", "deleted": True}


_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
_MOMENTS = tuple(f"effective_at[{name}]" for name in _COMPARED)
_MANY = ("actor_ids", "event_types", "project_ids", "resource_ids")


def _add_audit(router: APIRouter, place: Place) -> None:
    @router.get("/audit_logs", openapi_extra=takes("after", "limit", *_MOMENTS, *_MANY))
    def list_audit_logs(request: Request) -> dict[str, Any]:
        """Who changed what, the newest first."""
        query = listed_query(request, _MANY)
        states = [state for id_ in place.projects.ids() if (state := place.projects.find(id_)) is not None]
        names = {state.created.project: state.name for state in states}
        lines = {
            line.line_id: line
            for line in audit_lines(states, place.accounts.all(), place.keys.all())
            if _is_asked_for(line, query)
        }
        single = {name: query[name][0] for name in ("after", "limit") if name in query}
        return page_of(
            lines, lambda each: audit_shape(lines[each], names), single, limit=PAGE, max_limit=MAX_PAGE
        )


def _is_asked_for(line: AuditLine, query: Mapping[str, list[str]]) -> bool:
    facts = {
        "actor_ids": line.by,
        "event_types": line.type,
        "project_ids": line.project,
        "resource_ids": line.resource,
    }
    if any(name in query and fact not in query[name] for name, fact in facts.items()):
        return False
    for name, compare in _COMPARED.items():
        key = f"effective_at[{name}]"
        if key not in query:
            continue
        (text,) = query[key]
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise RefusedError(f"{key} is in whole seconds, not {text!r:.40}.", param=key, code="invalid_value")
        if not compare(int(line.at_s), int(text)):
            return False
    return True


def _account(place: Place, project_id: str, account_id: str) -> AccountState:
    found_project(place, project_id)
    state = place.accounts.find(account_id, project_id)
    if state is None:
        raise not_found("service account", account_id, param="service_account_id")
    return state


def _key(place: Place, project_id: str | None, key_id: str) -> KeyState:
    """A key that opens something: of a project, or an admin's (None)."""
    if project_id is not None:
        found_project(place, project_id)
    state = next((key for key in _open_keys(place, project_id) if key.created.key_id == key_id), None)
    if state is None:
        raise nowhere("key", key_id, "key_id") if project_id is None else not_found("key", key_id)
    return state


def _open_keys(place: Place, project_id: str | None) -> list[KeyState]:
    """Those of a project, or of admins (None)."""
    now_s = place.clock.now_s()
    return [
        each
        for each in place.keys.all()
        if each.opens(now_s)
        and (None if "admin" in each.created.scopes else each.created.project) == project_id
    ]


def _keys_of(place: Place, account_id: str) -> list[KeyState]:
    return [each for each in place.keys.all() if each.created.service_account == account_id]


def _revoke(place: Place, keys: list[KeyState], by: str) -> None:
    for key in keys:
        place.keys.revoke(key.created.key_id, by=by)


def _new_account(place: Place, project_id: str, body: AccountBody, asked: AskedFor, by: str) -> dict[str, Any]:
    """A repeat is answered with the account of its first request, and with a new key: the first was shown to
    nobody, and opens nothing any more."""
    active_project(place, project_id)
    if body.create_service_account_only and body.expires_in_seconds is not None:
        raise RefusedError(
            "expires_in_seconds is of a key, and create_service_account_only makes none. Leave one out.",
            param="expires_in_seconds",
            code="invalid_value",
        )
    now_s = place.clock.now_s()

    def make(account_id: str) -> AccountState:
        return place.accounts.put(
            ServiceAccountCreated(
                account_id=account_id,
                project=project_id,
                name=body.name,
                has_role=not body.create_service_account_only,
                at_s=now_s,
                by=by,
                request_sha256=asked.sha256,
            )
        )

    asked = asked._replace(project=project_id)
    state = place.account_repeats.made(asked, new_id("svcacct", now_s), make)
    if body.create_service_account_only:
        return new_account_shape(state, None)
    _revoke(place, _keys_of(place, state.created.account_id), by)
    key = place.keys.make(
        project=project_id,
        name=body.name,
        scopes=("read", "write"),
        lives_s=body.expires_in_seconds,
        service_account=state.created.account_id,
        by=by,
    )
    return new_account_shape(state, key)


def _new_admin_key(place: Place, body: AdminKeyBody, asked: AskedFor, by: str) -> dict[str, Any]:
    """A new one; the key that the first request of a repeat made is revoked: it was shown to nobody."""
    if asked.retry_count:
        since_s = place.clock.now_s() - REMEMBERED_S
        made = [
            open_key
            for open_key in _open_keys(place, None)
            if open_key.created.request_sha256 == asked.sha256 and open_key.created.at_s >= since_s
        ]
        _revoke(place, made[-1:], by)
    key = place.keys.make(
        project="default",
        name=body.name,
        scopes=("admin",),
        lives_s=body.expires_in_seconds,
        by=by,
        request_sha256=asked.sha256,
    )
    return {**admin_key_shape(KeyState(key.created)), "value": key.secret}
