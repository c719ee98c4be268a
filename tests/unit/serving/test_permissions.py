"""`client.fine_tuning.checkpoints.permissions`: a project lets others ask what it made; nobody else does."""

import openai
import pytest

from assay.serving.ids import checkpoint_name
from assay.serving.openai.app_state import AppState
from served import app_in, http_of
from unit.serving.test_jobs import LAUNCHED, PLANNED, SUCCEEDED, VALIDATED, checkpoint, create, happens


@pytest.fixture
def app(tmp_path) -> AppState:
    found = app_in(tmp_path)
    for project in ("default", "vision", "speech"):
        found.projects.ensure(project, by="")
    return found


@pytest.fixture
def model(app, sdk) -> str:
    """The last checkpoint of a job."""
    job = create(sdk)
    happens(app, job.id, VALIDATED, PLANNED, LAUNCHED, checkpoint(5), checkpoint(20, 5, 20), SUCCEEDED)
    return checkpoint_name(sdk.fine_tuning.jobs.retrieve(job.id).fine_tuned_model, 20)


def with_key(app: AppState, project: str) -> openai.OpenAI:
    """The SDK with a key of a project."""
    secret = app.keys.make(project=project, name="", scopes=("read", "write"), lives_s=None).secret
    return openai.OpenAI(base_url="http://localhost/v1", api_key=secret, http_client=http_of(app), max_retries=0)


def test_who_is_let_asks_and_lists_a_checkpoint_until_he_is_let_no_more(app, sdk, model):
    own, vision, speech = (with_key(app, item) for item in ("default", "vision", "speech"))
    permissions = own.fine_tuning.checkpoints.permissions
    (granted,) = permissions.create(model, project_ids=["vision"]).data
    assert (granted.object, granted.project_id) == ("checkpoint.permission", "vision")
    assert vision.models.retrieve(model).owned_by == "default"
    assert [model_.id for model_ in vision.models.list()] == ["tiny", model]
    assert [model_.id for model_ in speech.models.list()] == ["tiny"]
    for other in (model.rpartition(":ckpt")[0], checkpoint_name(model.rpartition(":ckpt")[0], 5)):
        with pytest.raises(openai.NotFoundError):
            vision.models.retrieve(other)
    with pytest.raises(openai.NotFoundError):
        speech.models.retrieve(model)
    with pytest.raises(openai.BadRequestError, match="Only its owner can delete it"):
        vision.models.delete(model)
    gone = permissions.delete(granted.id, fine_tuned_model_checkpoint=model)
    assert (gone.deleted, gone.id) == (True, granted.id)
    with pytest.raises(openai.NotFoundError):
        vision.models.retrieve(model)
    assert [model_.id for model_ in vision.models.list()] == ["tiny"]
    with pytest.raises(openai.NotFoundError):
        permissions.delete(granted.id, fine_tuned_model_checkpoint=model)


def test_permissions_are_listed_page_by_page_and_made_once(app, sdk, model):
    permissions = sdk.fine_tuning.checkpoints.permissions
    first = permissions.create(model, project_ids=["vision"]).data[0]
    app.clock.sleep_s(1)
    created = permissions.create(model, project_ids=["vision", "speech"]).data
    assert [item.project_id for item in created] == ["vision", "speech"] and created[0].id == first.id
    assert [permission.project_id for permission in permissions.list(model, limit=1)] == ["speech", "vision"]
    listed = permissions.list(model, order="ascending", project_id="vision")
    assert [item.id for item in listed] == [first.id]
    with pytest.warns(DeprecationWarning):
        page = permissions.retrieve(model)
    assert (len(page.data), page.has_more) == (2, False)


@pytest.mark.parametrize(
    ("name", "projects", "param"),
    [
        ("tiny", ["vision"], "fine_tuned_model_checkpoint"),
        (None, ["nowhere"], "project_ids.0"),
        (None, ["vision", "default"], "project_ids.1"),
        (None, [], "project_ids"),
    ],
)
def test_what_cannot_be_shared_is_a_400(app, sdk, model, name, projects, param):
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.fine_tuning.checkpoints.permissions.create(name or model, project_ids=projects)
    assert refused.value.param == param
    assert app.permissions.of(model) == []


def test_nobody_shares_what_is_not_his_own(app, sdk, model):
    own, vision = with_key(app, "default"), with_key(app, "vision")
    own.fine_tuning.checkpoints.permissions.create(model, project_ids=["vision"])
    for act in (
        lambda: vision.fine_tuning.checkpoints.permissions.create(model, project_ids=["speech"]),
        lambda: [*vision.fine_tuning.checkpoints.permissions.list(model)],
    ):
        with pytest.raises(openai.NotFoundError):
            act()
