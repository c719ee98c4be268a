"""What a model's name means: a base model, a finished model of a job, or one of its checkpoints.

A checkpoint is there from the moment that its job's log has it, and as long as the run keeps it; what a
finished or cancelled job has left stays.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from assay.serving.base_models import BaseModelFile
from assay.serving.engines.asks import ModelSource
from assay.serving.ids import checkpoint_name, job_of_model
from assay.serving.job import JobState
from assay.serving.jobs import JobShelf


class NamedModel(NamedTuple):
    """A model that there is."""

    name: str
    made_s: float
    owned_by: str
    source: ModelSource
    is_checkpoint: bool = False


def named_model(
    name: str, models: Mapping[str, BaseModelFile], jobs: JobShelf, project: str
) -> NamedModel | None:
    """The model of a name, if the project may ask it."""
    if (base := models.get(name)) is not None:
        return _base(base)
    job_id = job_of_model(name)
    state = None if job_id is None else jobs.find(job_id, project)
    return None if state is None else next((each for each in _made(state) if each.name == name), None)


def every_model(models: Mapping[str, BaseModelFile], jobs: JobShelf, project: str) -> Iterator[NamedModel]:
    """Base models, then what jobs made, the oldest job first."""
    yield from map(_base, models.values())
    for state in jobs.with_models(project):
        yield from _made(state)


def _base(base: BaseModelFile) -> NamedModel:
    methods = base.config.methods
    name = next((each for each in ("supervised", "dpo") if each in methods), next(iter(methods)))
    method = methods[name]
    source = ModelSource(tokenizer=base.config.tokenizer, recipe=method.recipe, max_tokens=method.max_tokens)
    return NamedModel(base.name, base.created_s, base.config.owned_by, source)


def _made(state: JobState) -> Iterator[NamedModel]:
    if state.validated is None or state.is_model_deleted:
        return
    run_id, owner = state.validated.run_id, state.created.project
    if state.succeeded is not None:
        source = ModelSource(run_id=run_id, step=state.succeeded.step)
        yield NamedModel(state.model, state.succeeded.at_s, owner, source)
    for each in state.usable_checkpoints:
        source = ModelSource(run_id=run_id, step=each.step)
        yield NamedModel(checkpoint_name(state.model, each.step), each.at_s, owner, source, is_checkpoint=True)
