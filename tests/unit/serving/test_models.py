import openai
import pytest

from assay.serving.engines.sources import named_model
from assay.serving.ids import checkpoint_name
from unit.serving.test_jobs import LAUNCHED, PLANNED, SUCCEEDED, VALIDATED, checkpoint, create, happens


def test_each_name_is_a_commit_of_its_jobs_run(app, sdk):
    job = create(sdk)
    assert [model_.id for model_ in sdk.models.list()] == ["tiny"]
    happens(app, job.id, VALIDATED, PLANNED, LAUNCHED, checkpoint(5), checkpoint(20, 5, 20), SUCCEEDED)
    model = sdk.fine_tuning.jobs.retrieve(job.id).fine_tuned_model
    names = [model_.id for model_ in sdk.models.list()]
    assert names == ["tiny", model, checkpoint_name(model, 5), checkpoint_name(model, 20)]
    sources = [named_model(name, app.models, app.jobs, "default").source for name in names]
    assert [(source.run_id, source.step) for source in sources] == [
        (None, None),
        ("r", 20),
        ("r", 5),
        ("r", 20),
    ]
    assert sources[0].recipe["method"]["type"] == "classify" and sources[0].max_tokens == 128
    assert named_model(model, app.models, app.jobs, "another") is None


def test_a_deleted_model_answers_nobody_and_takes_its_checkpoints_along(app, sdk):
    job = create(sdk)
    happens(app, job.id, VALIDATED, PLANNED, LAUNCHED, checkpoint(5), SUCCEEDED)
    model = sdk.fine_tuning.jobs.retrieve(job.id).fine_tuned_model
    with pytest.raises(openai.BadRequestError, match="its checkpoints are deleted with it"):
        sdk.models.delete(checkpoint_name(model, 5))
    with pytest.raises(openai.BadRequestError, match="a file in the server's"):
        sdk.models.delete("tiny")
    deleted = sdk.models.delete(model)
    assert (deleted.id, deleted.deleted, deleted.object) == (model, True, "model")
    assert [model_.id for model_ in sdk.models.list()] == ["tiny"]
    for name in (model, checkpoint_name(model, 5)):
        with pytest.raises(openai.NotFoundError):
            sdk.models.retrieve(name)
        with pytest.raises(openai.NotFoundError):
            sdk.models.delete(name)
    assert sdk.fine_tuning.jobs.retrieve(job.id).status == "succeeded"
    output = [event.message for event in sdk.fine_tuning.jobs.list_events(job.id)]
    assert output[0] == f"Deleted model: {model}"
