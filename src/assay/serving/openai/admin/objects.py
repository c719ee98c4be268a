"""Admin objects as the SDK's types define them."""

from typing import Any

from assay.serving.admin.accounts import AccountState
from assay.serving.admin.audit import AuditLine
from assay.serving.admin.projects import ProjectState
from assay.serving.keys import KeyState, NewKey

_ROLE = {True: "member", False: "none"}


def project_object(state: ProjectState) -> dict[str, Any]:
    """`Project`."""
    return {
        "id": state.created.project,
        "object": "organization.project",
        "created_at": int(state.created.at_s),
        "name": state.name,
        "status": "active" if state.archived is None else "archived",
        "archived_at": None if state.archived is None else int(state.archived.at_s),
    }


def account_object(state: AccountState) -> dict[str, Any]:
    """`ProjectServiceAccount`."""
    return {
        "id": state.created.account_id,
        "object": "organization.project.service_account",
        "created_at": int(state.created.at_s),
        "name": state.created.name,
        "role": _ROLE[state.created.has_role],
    }


def new_account_object(state: AccountState, key: NewKey | None) -> dict[str, Any]:
    """`ServiceAccountCreateResponse`; the only response with the key."""
    shown: dict[str, Any] | None = None
    if key is not None:
        shown = {
            "id": key.created.key_id,
            "object": "organization.project.service_account.api_key",
            "created_at": int(key.created.at_s),
            "name": key.created.name,
            "value": key.secret,
            "expires_at": _moment(key.created.expires_s),
        }
    return {**account_object(state), "api_key": shown}


def key_object(state: KeyState, account: AccountState | None) -> dict[str, Any]:
    """`ProjectAPIKey`; keys from the command line have no account."""
    owner: dict[str, Any] = {"type": None, "user": None, "service_account": None}
    if account is not None:
        owner |= {"type": "service_account", "service_account": account_object(account)}
    return {
        "id": state.created.key_id,
        "object": "organization.project.api_key",
        "created_at": int(state.created.at_s),
        "expires_at": _moment(state.created.expires_s),
        "last_used_at": None,
        "name": state.created.name,
        "owner": owner,
        "owner_project_access": "active",
        "redacted_value": _redacted(state),
        "x_assay": {"scopes": list(state.created.scopes)},
    }


def admin_key_object(state: KeyState) -> dict[str, Any]:
    """`AdminAPIKey`."""
    return {
        "id": state.created.key_id,
        "object": "organization.admin_api_key",
        "created_at": int(state.created.at_s),
        "expires_at": _moment(state.created.expires_s),
        "last_used_at": None,
        "name": state.created.name,
        "owner": {"type": "user", "object": "organization.user", "role": "owner", "id": state.created.by or None},
        "redacted_value": _redacted(state),
    }


def limit_object(limit_device_hours: float, spent_s: float) -> dict[str, Any]:
    """`ProjectSpendLimit`."""
    is_spent = spent_s >= limit_device_hours * 3600
    return {
        "object": "project.spend_limit",
        "currency": "device_hours",
        "interval": "month",
        "threshold_amount": round(limit_device_hours * 100),
        "enforcement": {"status": "enforcing" if is_spent else "inactive"},
        "x_assay": {"limit_device_hours": limit_device_hours, "charged_device_hours": spent_s / 3600},
    }


def audit_object(line: AuditLine, names: dict[str, str]) -> dict[str, Any]:
    """`AuditLogListResponse`. `names`: project id -> name."""
    is_key = line.by.startswith("key-")
    return {
        "id": line.line_id,
        "type": line.type,
        "effective_at": int(line.at_s),
        "actor": {"type": "api_key", "api_key": {"id": line.by, "type": "user"}}
        if is_key
        else {"type": "session", "session": {"user": {"id": line.by or None}}},
        "project": None if line.project is None else {"id": line.project, "name": names.get(line.project)},
        line.type: line.details,
    }


def _redacted(state: KeyState) -> str:
    return f"sk-assay-...{state.created.hint}"


def _moment(at_s: float | None) -> int | None:
    return None if at_s is None else int(at_s)
