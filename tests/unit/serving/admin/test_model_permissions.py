"""`projects.model_permissions`: which models a project may train and ask; any other is not there for it."""

import openai
import pytest

from unit.serving.admin.test_admin import sdk_with
from unit.serving.test_jobs import LAUNCHED, PLANNED, SUCCEEDED, VALIDATED, checkpoint, create, happens


@pytest.fixture
def sdk(app) -> openai.OpenAI:
    """With an admin key, and a key of project `ours`."""
    app.projects.ensure("ours", by="user me")
    admin = app.keys.make(project="default", name="ops", scopes=("admin",), lives_s=None, by="user me")
    ours = app.keys.make(project="ours", name="ci", scopes=("read", "write"), lives_s=None, by="user me")
    return sdk_with(app, ours.secret, admin.secret)


def test_a_base_model_that_is_denied_is_gone_with_all_that_was_trained_from_it(app, sdk) -> None:
    permissions = sdk.admin.organization.projects.model_permissions
    job = create(sdk)
    happens(app, job.id, VALIDATED, PLANNED, LAUNCHED, checkpoint(5), SUCCEEDED)
    model = sdk.fine_tuning.jobs.retrieve(job.id).fine_tuned_model
    before = [model_.id for model_ in sdk.models.list()]
    assert before[:2] == ["tiny", model]
    with pytest.raises(openai.NotFoundError):
        permissions.retrieve("ours")
    denied = permissions.update("ours", mode="deny_list", model_ids=["tiny"])
    assert (denied.mode, denied.api_model_ids) == ("deny_list", ["tiny"]) and permissions.retrieve("ours") == denied
    assert [*sdk.models.list()] == []
    for name in ("tiny", model):
        with pytest.raises(openai.NotFoundError):
            sdk.models.retrieve(name)
    with pytest.raises(openai.BadRequestError, match="available: none") as refused:
        create(sdk)
    assert refused.value.code == "model_not_found"
    assert permissions.delete("ours").deleted
    assert [model_.id for model_ in sdk.models.list()] == before
    with pytest.raises(openai.NotFoundError):
        permissions.delete("ours")


def test_a_list_of_what_is_allowed_may_name_one_trained_model(app, sdk) -> None:
    permissions = sdk.admin.organization.projects.model_permissions
    job = create(sdk)
    happens(app, job.id, VALIDATED, PLANNED, LAUNCHED, checkpoint(5), SUCCEEDED)
    model = sdk.fine_tuning.jobs.retrieve(job.id).fine_tuned_model
    permissions.update("ours", mode="allow_list", model_ids=[model])
    assert [model_.id for model_ in sdk.models.list()] == [model]
    changed = sdk.admin.organization.audit_logs.list(event_types=["project.updated"]).data
    assert len(changed) == 1
    with pytest.raises(openai.BadRequestError) as refused:
        permissions.update("ours", mode="some", model_ids=[])
    assert refused.value.param == "mode"
    with pytest.raises(openai.NotFoundError, match="There is no project 'nowhere'"):
        permissions.update("nowhere", mode="allow_list", model_ids=[])
