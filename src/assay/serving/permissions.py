"""Models that a project lets others ask: each name has a log of who may. Their checkpoints are kept for them.

permission/SHA256 OF THE NAME/log/...    granted, revoked
shared/PROJECT/SHA256 OF THE NAME        that the project may once have been let ask it: put before that
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
    """Who may behind one more entry."""
    grants = dict(state or {})
    if isinstance(entry, PermissionGranted):
        return {**grants, entry.project: entry}
    return {project: each for project, each in grants.items() if each.permission_id != entry.permission_id}


PERMISSION_LOG: LogKind[PermissionEntry, Grants] = LogKind(
    "log of permissions", PERMISSION_ENTRIES, fold_permissions
)


class PermissionShelf:
    """All permissions of a store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._log = lru_cache(maxsize=1024)(self._new_log)

    def grant(
        self, model: str, projects: Sequence[str], *, by: str, weights: Weights
    ) -> list[PermissionGranted]:
        """Let projects ask a model; who may already has the permission that it has. `weights`: its."""
        return [self._granted(model, project, by=by, weights=weights) for project in projects]

    def revoke(self, model: str, permission_id: str, *, by: str, weights: Weights) -> bool:
        """Let who has it ask no more; whether anybody had it. `weights`: its."""
        revoked = PermissionRevoked(permission_id=permission_id, at_s=self._clock.now_s(), by=by)
        had: list[bool] = []

        def decide(now: Grants | None) -> PermissionEntry | None:
            had[:] = [permission_id in {each.permission_id for each in (now or {}).values()}]
            return revoked if had[0] else None

        self._log(model).append(decide)
        weights.release(permission_id)
        return had == [True]

    def of(self, model: str) -> list[PermissionGranted]:
        """A model's permissions, the oldest first."""
        return sorted((self._log(model).state() or {}).values(), key=lambda each: each.permission_id)

    def may_ask(self, model: str, project: str) -> bool:
        """Whether a project whose model it is not may ask it."""
        return project in (self._log(model).state() or {})

    def shared_with(self, project: str) -> Iterator[str]:
        """The names of others' models that a project may ask."""
        for item in self._store.list(f"shared/{project}/"):
            model = self._store.get(item.key).decode()
            if self.may_ask(model, project):
                yield model

    def _granted(self, model: str, project: str, *, by: str, weights: Weights) -> PermissionGranted:
        there = (self._log(model).state() or {}).get(project)
        if there is not None:
            return there
        now_s = self._clock.now_s()
        granted = PermissionGranted(
            permission_id=new_id("cp", now_s), model=model, project=project, at_s=now_s, by=by
        )
        weights.keep(granted.permission_id, param="fine_tuned_model_checkpoint")
        self._store.put(f"shared/{project}/{_digest(model)}", model.encode())
        grants = self._log(model).append(lambda now: None if now and project in now else granted)
        assert grants is not None
        if grants[project] != granted:  # somebody else let it in at the same moment
            weights.release(granted.permission_id)
        return grants[project]

    def _new_log(self, model: str) -> EntryLog[PermissionEntry, Grants]:
        return EntryLog(self._store, f"permission/{_digest(model)}/log", PERMISSION_LOG)


def _digest(model: str) -> str:
    return sha256_of_json(model)
