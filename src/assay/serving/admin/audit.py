"""Audit log: changes of projects, service accounts and keys, oldest first.

Lines are derived from the entity logs, so no change can be missing. A line's id is a digest of its entry; it is
stable and sorts by time.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from assay.base.digest import sha256_of_json
from assay.records.project import (
    ModelPermissionsSet,
    ProjectArchived,
    ProjectCreated,
    ProjectEntry,
    ProjectRenamed,
    SpendLimitSet,
)
from assay.serving.admin.accounts import AccountState
from assay.serving.admin.projects import ProjectState
from assay.serving.ids import timed_id
from assay.serving.keys import KeyState


class AuditLine(NamedTuple):
    """One change."""

    line_id: str
    at_s: float
    type: str
    """Event type of the API, such as `project.created`."""
    project: str | None
    """Project of the changed resource; None for an admin key."""
    resource: str
    """Id of the changed resource."""
    by: str
    """Id of the API key that made the change, or a user of the command line; may be empty."""
    details: dict[str, Any]


def audit_lines(
    projects: Iterable[ProjectState], accounts: Iterable[AccountState], keys: Iterable[KeyState]
) -> list[AuditLine]:
    """Return all audit lines in order."""
    found = [
        *(line for state in projects for line in _of_project(state)),
        *(line for state in accounts for line in _of_account(state)),
        *(line for state in keys for line in _of_key(state)),
    ]
    return sorted(found)


def _of_project(state: ProjectState) -> Iterator[AuditLine]:
    project = state.created.project
    for number, entry in enumerate(state.entries):
        kind, details = _project_words(entry)
        yield _line(kind, entry.at_s, project, project, entry.by, details, number)


def _project_words(entry: ProjectEntry) -> tuple[str, dict[str, Any]]:
    match entry:
        case ProjectCreated():
            return "project.created", {"data": {"name": entry.name, "title": entry.name}}
        case ProjectRenamed():
            return "project.updated", {"changes_requested": {"title": entry.name}}
        case SpendLimitSet():
            limit = {"spend_limit_device_hours": entry.device_hours}
            return "project.updated", {"changes_requested": {"x_assay": limit}}
        case ModelPermissionsSet():
            models = {"mode": entry.mode, "model_ids": list(entry.model_ids)}
            return "project.updated", {"changes_requested": {"x_assay": {"model_permissions": models}}}
        case ProjectArchived():
            return "project.archived", {}


def _of_account(state: AccountState) -> Iterator[AuditLine]:
    created, deleted = state.created, state.deleted
    details = {"data": {"role": "member" if created.has_role else "none"}}
    yield _line("service_account.created", created.at_s, created.project, created.account_id, created.by, details, 0)
    if deleted is not None:
        yield _line("service_account.deleted", deleted.at_s, created.project, created.account_id, deleted.by, {}, 1)


def _of_key(state: KeyState) -> Iterator[AuditLine]:
    created, revoked = state.created, state.revoked
    project = None if "admin" in created.scopes else created.project
    details = {"data": {"scopes": list(created.scopes)}}
    yield _line("api_key.created", created.at_s, project, created.key_id, created.by, details, 0)
    if revoked is not None:
        yield _line("api_key.deleted", revoked.at_s, project, created.key_id, revoked.by, {}, 1)


def _line(
    kind: str, at_s: float, project: str | None, resource: str, by: str, details: dict[str, Any], number: int
) -> AuditLine:
    line_id = timed_id("audit_log", at_s, sha256_of_json([kind, resource, number]))
    return AuditLine(line_id, at_s, kind, project, resource, by, {"id": resource, **details})
