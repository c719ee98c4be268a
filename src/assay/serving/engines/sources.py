"""Resolves a model name: a base model, the final model of a job, or one of its checkpoints.

A checkpoint can be used from the moment its job's log lists it until the run retires it. Checkpoints of ended
jobs
stay.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from assay.inference.protocol import ModelSource
from assay.serving.admin.projects import ProjectRepository
from assay.serving.ids import checkpoint_name, job_of_model
from assay.serving.job import JobState
from assay.serving.jobs import JobRepository
from assay.serving.permissions import PermissionRepository

if TYPE_CHECKING:
    from assay.serving.base_models import BaseModelFile


class NamedModel(NamedTuple):
    """A model that can be queried."""

    name: str
    created_s: float
    owned_by: str
    source: ModelSource
    method: str
    """API type of the method by which it was or can be trained."""
    is_checkpoint: bool = False


def named_model(
    name: str, models: "Mapping[str, BaseModelFile]", jobs: JobRepository, project: str
) -> NamedModel | None:
    """Return the model if it is a base model or belongs to `project`."""
    if (base := models.get(name)) is not None:
        return _base(base)
    job_id = job_of_model(name)
    state = None if job_id is None else jobs.find(job_id, project)
    return None if state is None else next((model for model in _models_of_job(state) if model.name == name), None)


class ModelNames(NamedTuple):
    """Resolves names for a project: base models, its own models, and models shared with it, filtered by the
    project's model permissions."""

    models: "Mapping[str, BaseModelFile]"
    jobs: JobRepository
    permissions: PermissionRepository
    projects: ProjectRepository

    def find(self, name: str, project: str) -> NamedModel | None:
        """Return the model if the project may query it."""
        found = named_model(name, self.models, self.jobs, project)
        if found is None and self.permissions.may_use(name, project):
            found = self._of_another(name)
        return found if found is not None and self._may_use(name, project) else None

    def all(self, project: str) -> Iterator[NamedModel]:
        """Yield base models, then models of the project's jobs from oldest to newest, then shared models."""
        for model in chain(
            map(_base, self.models.values()),
            *(_models_of_job(state) for state in self.jobs.with_models(project)),
            filter(None, map(self._of_another, self.permissions.shared_with(project))),
        ):
            if self._may_use(model.name, project):
                yield model

    def base(self, name: str, project: str) -> "BaseModelFile | None":
        """Return the base model if the project may train it."""
        return self.models.get(name) if self._may_use(name, project) else None

    def bases(self, project: str) -> list[str]:
        """Return the names of base models that the project may train."""
        return [name for name in self.models if self._may_use(name, project)]

    def _of_another(self, name: str) -> NamedModel | None:
        job_id = job_of_model(name)
        state = None if job_id is None else self.jobs.state(job_id)
        return None if state is None else next((model for model in _models_of_job(state) if model.name == name), None)

    def _may_use(self, name: str, project: str) -> bool:
        trained_from = [name.split(":")[1]] if job_of_model(name) is not None else []
        return self.projects.may_use(project, name, *trained_from)


def _base(base: "BaseModelFile") -> NamedModel:
    methods = base.config.methods
    name = next((method_name for method_name in ("supervised", "dpo") if method_name in methods), next(iter(methods)))
    method = methods[name]
    source = ModelSource(
        tokenizer=base.config.tokenizer,
        chat_template=base.config.chat_template,
        recipe=method.recipe,
        max_tokens=method.max_tokens,
    )
    return NamedModel(base.name, base.created_s, base.config.owned_by, source, name)


def _models_of_job(state: JobState) -> Iterator[NamedModel]:
    if state.validated is None or state.is_model_deleted:
        return
    run_id, owner, method = state.validated.run_id, state.created.project, state.created.method
    if state.succeeded is not None:
        source = ModelSource(run_id=run_id, step=state.succeeded.step)
        yield NamedModel(state.model, state.succeeded.at_s, owner, source, method)
    for checkpoint in state.usable_checkpoints:
        source = ModelSource(run_id=run_id, step=checkpoint.step)
        name = checkpoint_name(state.model, checkpoint.step)
        yield NamedModel(name, checkpoint.at_s, owner, source, method, is_checkpoint=True)
