"""Projects separate the resources of API users.

    project/ID/log/00000000.json    the log of a project
    index/project/ID                marker, written before the first log entry

A project's id prefixes its resources. A project that the command line creates has its name as id.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from assay.base.clock import Clock
from assay.records.project import (
    PROJECT_ENTRIES,
    ModelPermissionsSet,
    ProjectArchived,
    ProjectCreated,
    ProjectEntry,
    ProjectRenamed,
    SpendLimitSet,
)
from assay.serving.ids import new_project_id
from assay.serving.repository import ResourceState, resource_log
from assay.store.logs.entry_log import EntryLog
from assay.store.objects import ObjectStore


@dataclass(frozen=True)
class ProjectState(ResourceState[ProjectCreated]):
    """State of a project, folded from its log."""

    entries: tuple[ProjectEntry, ...] = ()
    name: str = ""
    limit_device_hours: float | None = None
    """Device-hours per calendar month; None for no limit."""
    models: ModelPermissionsSet | None = None
    """Models that the project may query and train; None for all."""
    archived: ProjectArchived | None = None

    def may_use(self, *names: str) -> bool:
        """Return whether the project may use a model. `names`: the model's name and its base model's."""
        if self.models is None:
            return True
        is_listed = not set(names).isdisjoint(self.models.model_ids)
        return is_listed == (self.models.mode == "allow_list")

    @classmethod
    def created_by(cls, created: ProjectCreated) -> Self:
        return cls(created, entries=(created,), name=created.name)

    def after(self, entry: ProjectEntry) -> Self:
        return replace(super().after(entry), entries=(*self.entries, entry))

    def changes(self, entry: ProjectEntry) -> dict[str, Any]:
        match entry:
            case ProjectRenamed():
                return {"name": entry.name}
            case SpendLimitSet():
                return {"limit_device_hours": entry.device_hours}
            case ModelPermissionsSet():
                return {"models": None if entry.mode is None else entry}
            case _:
                return {"archived": self.archived or entry}


PROJECT_LOG = resource_log("project's log", PROJECT_ENTRIES, ProjectState)


class ProjectRepository:
    """Projects in an object store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._logs: dict[str, EntryLog[ProjectEntry, ProjectState]] = {}

    def ids(self) -> list[str]:
        """Return all project ids, sorted."""
        return sorted(item.key.rpartition("/")[2] for item in self._store.list("index/project/"))

    def find(self, project: str) -> ProjectState | None:
        """Return a project, or None. `project` may be any text."""
        return self._log(project).state() if project in self.ids() else None

    def create(self, name: str, *, by: str) -> ProjectState:
        """Create a project with a new id."""
        now_s = self._clock.now_s()
        return self._begin(ProjectCreated(project=new_project_id(now_s), name=name, at_s=now_s, by=by))

    def ensure(self, project: str, *, by: str) -> ProjectState:
        """Return the project with this id; create it if it does not exist."""
        created = ProjectCreated(project=project, name=project, at_s=self._clock.now_s(), by=by)
        return self._begin(created)

    def rename(self, project: str, name: str, *, by: str) -> ProjectState:
        renamed = ProjectRenamed(name=name, at_s=self._clock.now_s(), by=by)
        return self._append(project, lambda state: renamed if state.name != name else None)

    def limit(self, project: str, device_hours: float | None, *, by: str) -> ProjectState:
        """Set the monthly limit in device-hours; None removes it."""
        limited = SpendLimitSet(device_hours=device_hours, at_s=self._clock.now_s(), by=by)
        return self._append(project, lambda now: limited if now.limit_device_hours != device_hours else None)

    def permit(
        self, project: str, mode: Literal["allow_list", "deny_list"] | None, model_ids: tuple[str, ...], *, by: str
    ) -> ProjectState:
        """Set the models that the project may use; `mode` None allows all."""
        permitted = ModelPermissionsSet(mode=mode, model_ids=model_ids, at_s=self._clock.now_s(), by=by)

        def decide(now: ProjectState) -> ProjectEntry | None:
            current = (None, ()) if now.models is None else (now.models.mode, now.models.model_ids)
            return None if current == (mode, model_ids) else permitted

        return self._append(project, decide)

    def may_use(self, project: str, *names: str) -> bool:
        """Return whether a project may use a model (see `ProjectState.may_use`)."""
        state = self._log(project).state()
        return state is None or state.may_use(*names)

    def archive(self, project: str, *, by: str) -> ProjectState:
        """Archive the project, so that its keys are rejected."""
        archived = ProjectArchived(at_s=self._clock.now_s(), by=by)
        return self._append(project, lambda state: None if state.archived else archived)

    def _begin(self, created: ProjectCreated) -> ProjectState:
        if created.project not in self.ids():
            self._store.put(f"index/project/{created.project}", b"")
        state = self._log(created.project).append(lambda now: created if now is None else None)
        assert state is not None
        return state

    def _append(self, project: str, decide: Callable[[ProjectState], ProjectEntry | None]) -> ProjectState:
        state = self._log(project).append(lambda now: None if now is None else decide(now))
        assert state is not None, f"{project} was found before"
        return state

    def _log(self, project: str) -> EntryLog[ProjectEntry, ProjectState]:
        return self._logs.setdefault(project, EntryLog(self._store, f"project/{project}/log", PROJECT_LOG))
