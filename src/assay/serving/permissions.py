"""Checkpoint permissions: a project shares its models with other projects. Shared checkpoints are retained.

permission/SHA256 OF THE NAME/log/...    granted and revoked permissions of a model
shared/PROJECT/SHA256 OF THE NAME        marker, written before a grant to the project
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from assay.base.clock import Clock
from assay.base.digest import sha256_of_json
from assay.records.checkpoint_permission import (
    PERMISSION_ENTRIES,
    PermissionEntry,
    PermissionGranted,
    PermissionRevoked,
)
from assay.serving.ids import new_id
from assay.serving.retention import Weights
from assay.store.logs.entry_log import EntryLog, LogKind
from assay.store.objects import ObjectStore

Grants = Mapping[str, PermissionGranted]
"""By project."""


def fold_permissions(state: Grants | None, entry: PermissionEntry) -> Grants:
    """Return the grants after one more log entry."""
    grants = dict(state or {})
    if isinstance(entry, PermissionGranted):
        return {**grants, entry.project: entry}
    return {project: grant for project, grant in grants.items() if grant.permission_id != entry.permission_id}


PERMISSION_LOG: LogKind[PermissionEntry, Grants] = LogKind("log of permissions", PERMISSION_ENTRIES, fold_permissions)


class PermissionRepository:
    """Checkpoint permissions in an object store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._log = lru_cache(maxsize=1024)(self._new_log)

    def grant(self, model: str, projects: Sequence[str], *, by: str, weights: Weights) -> list[PermissionGranted]:
        """Grant projects access to a model and return the permissions. `weights`: the model's."""
        return [self._granted(model, project, by=by, weights=weights) for project in projects]

    def revoke(self, model: str, permission_id: str, *, by: str, weights: Weights) -> bool:
        """Revoke a permission; return whether it existed. `weights`: the model's."""
        revoked = PermissionRevoked(permission_id=permission_id, at_s=self._clock.now_s(), by=by)
        had: list[bool] = []

        def decide(now: Grants | None) -> PermissionEntry | None:
            had[:] = [permission_id in {grant.permission_id for grant in (now or {}).values()}]
            return revoked if had[0] else None

        self._log(model).append(decide)
        weights.release(permission_id)
        return had == [True]

    def of(self, model: str) -> list[PermissionGranted]:
        """Return the permissions of a model, oldest first."""
        return sorted((self._log(model).state() or {}).values(), key=lambda grant: grant.permission_id)

    def may_use(self, model: str, project: str) -> bool:
        """Return whether another project's model is shared with `project`."""
        return project in (self._log(model).state() or {})

    def shared_with(self, project: str) -> Iterator[str]:
        """Yield the names of models that are shared with `project`."""
        for item in self._store.list(f"shared/{project}/"):
            model = self._store.get(item.key).decode()
            if self.may_use(model, project):
                yield model

    def _granted(self, model: str, project: str, *, by: str, weights: Weights) -> PermissionGranted:
        granted_before = (self._log(model).state() or {}).get(project)
        if granted_before is not None:
            return granted_before
        now_s = self._clock.now_s()
        granted = PermissionGranted(permission_id=new_id("cp", now_s), model=model, project=project, at_s=now_s, by=by)
        weights.retain(granted.permission_id, param="fine_tuned_model_checkpoint")
        self._store.put(f"shared/{project}/{_digest(model)}", model.encode())
        grants = self._log(model).append(lambda now: None if now and project in now else granted)
        assert grants is not None
        if grants[project] != granted:  # granted concurrently
            weights.release(granted.permission_id)
        return grants[project]

    def _new_log(self, model: str) -> EntryLog[PermissionEntry, Grants]:
        return EntryLog(self._store, f"permission/{_digest(model)}/log", PERMISSION_LOG)


def _digest(model: str) -> str:
    return sha256_of_json(model)
