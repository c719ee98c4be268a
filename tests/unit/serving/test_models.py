import openai
import pytest

from assay.serving.engines.sources import named_model
from assay.serving.ids import checkpoint_name
from assay.serving.openai.place import Place
from served import place_in, sdk_of
from unit.serving.test_jobs import LAUNCHED, PLANNED, SUCCEEDED, VALIDATED, checkpoint, create, happens


@pytest.fixture
def place(tmp_path) -> Place:
    return place_in(tmp_path)


@pytest.fixture
def sdk(place) -> openai.OpenAI:
    return sdk_of(place)


def test_each_name_is_a_commit_of_its_jobs_run(place, sdk):
    job = create(sdk)
    assert [each.id for each in sdk.models.list()] == ["tiny"]
    happens(place, job.id, VALIDATED, PLANNED, LAUNCHED, checkpoint(5), checkpoint(20, 5, 20), SUCCEEDED)
    model = sdk.fine_tuning.jobs.retrieve(job.id).fine_tuned_model
    names = [each.id for each in sdk.models.list()]
    assert names == ["tiny", model, checkpoint_name(model, 5), checkpoint_name(model, 20)]
    sources = [named_model(name, place.models, place.jobs, "default").source for name in names]
    assert [(source.run_id, source.step) for source in sources] == [
        (None, None),
        ("r", 20),
        ("r", 5),
        ("r", 20),
    ]
    assert sources[0].recipe["method"]["type"] == "classify" and sources[0].max_tokens == 128
    assert named_model(model, place.models, place.jobs, "another") is None


def test_a_deleted_model_answers_nobody_and_takes_its_checkpoints_along(place, sdk):
    job = create(sdk)
    happens(place, job.id, VALIDATED, PLANNED, LAUNCHED, checkpoint(5), SUCCEEDED)
    model = sdk.fine_tuning.jobs.retrieve(job.id).fine_tuned_model
    with pytest.raises(openai.BadRequestError, match="its checkpoints go with it"):
        sdk.models.delete(checkpoint_name(model, 5))
    with pytest.raises(openai.BadRequestError, match="file of the server's"):
        sdk.models.delete("tiny")
    deleted = sdk.models.delete(model)
    assert (deleted.id, deleted.deleted, deleted.object) == (model, True, "model")
    assert [each.id for each in sdk.models.list()] == ["tiny"]
    for name in (model, checkpoint_name(model, 5)):
        with pytest.raises(openai.NotFoundError):
            sdk.models.retrieve(name)
        with pytest.raises(openai.NotFoundError):
            sdk.models.delete(name)
    assert sdk.fine_tuning.jobs.retrieve(job.id).status == "succeeded"
    said = [event.message for event in sdk.fine_tuning.jobs.list_events(job.id)]
    assert said[0] == f"Deleted model: {model}"
