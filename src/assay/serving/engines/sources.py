"""What a model's name means: a base model, a finished model of a job, or one of its checkpoints.

A checkpoint is there from the moment that its job's log has it, and as long as the run keeps it; what a
finished or cancelled job has left stays.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from assay.inference.protocol import ModelSource
from assay.serving.admin.projects import ProjectShelf
from assay.serving.base_models import BaseModelFile
from assay.serving.ids import checkpoint_name, job_of_model
from assay.serving.job import JobState
from assay.serving.jobs import JobShelf
from assay.serving.permissions import PermissionShelf


class NamedModel(NamedTuple):
    """A model that there is."""

    name: str
    made_s: float
    owned_by: str
    source: ModelSource
    method: str
    """The API's word for what it was, or is to be, trained by."""
    is_checkpoint: bool = False


def named_model(
    name: str, models: Mapping[str, BaseModelFile], jobs: JobShelf, project: str
) -> NamedModel | None:
    """The model of a name, if it is a base model or the project's own."""
    if (base := models.get(name)) is not None:
        return _base(base)
    job_id = job_of_model(name)
    state = None if job_id is None else jobs.find(job_id, project)
    return None if state is None else next((each for each in _made(state) if each.name == name), None)


class ModelNames(NamedTuple):
    """What names mean to whom: his own models, and those that other projects let him ask, as far as an admin
    lets his project."""

    models: Mapping[str, BaseModelFile]
    jobs: JobShelf
    permissions: PermissionShelf
    projects: ProjectShelf

    def find(self, name: str, project: str) -> NamedModel | None:
        """The model of a name, if the project may ask it."""
        found = named_model(name, self.models, self.jobs, project)
        if found is None and self.permissions.may_ask(name, project):
            found = self._of_another(name)
        return found if found is not None and self._may_use(name, project) else None

    def all(self, project: str) -> Iterator[NamedModel]:
        """Base models, then what the project's jobs made, the oldest job first, then what others share."""
        for each in chain(
            map(_base, self.models.values()),
            *(_made(state) for state in self.jobs.with_models(project)),
            filter(None, map(self._of_another, self.permissions.shared_with(project))),
        ):
            if self._may_use(each.name, project):
                yield each

    def base(self, name: str, project: str) -> BaseModelFile | None:
        """The base model of a name, if the project may train it."""
        return self.models.get(name) if self._may_use(name, project) else None

    def bases(self, project: str) -> list[str]:
        """The names of all that it may train."""
        return [name for name in self.models if self._may_use(name, project)]

    def _of_another(self, name: str) -> NamedModel | None:
        job_id = job_of_model(name)
        state = None if job_id is None else self.jobs.shelf.state(job_id)
        return None if state is None else next((each for each in _made(state) if each.name == name), None)

    def _may_use(self, name: str, project: str) -> bool:
        trained_from = [name.split(":")[1]] if job_of_model(name) is not None else []
        return self.projects.may_use(project, name, *trained_from)


def _base(base: BaseModelFile) -> NamedModel:
    methods = base.config.methods
    name = next((each for each in ("supervised", "dpo") if each in methods), next(iter(methods)))
    method = methods[name]
    source = ModelSource(
        tokenizer=base.config.tokenizer,
        chat_template=base.config.chat_template,
        recipe=method.recipe,
        max_tokens=method.max_tokens,
    )
    return NamedModel(base.name, base.created_s, base.config.owned_by, source, name)


def _made(state: JobState) -> Iterator[NamedModel]:
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
