"""What the index names no more is listed again by the next server that starts."""

from assay.serving.openai.app_state import AppState
from assay.serving.server import _restore_index
from assay.store.objects import open_store
from served import app_in, http_of, sdk_of
from unit.serving.test_jobs import LAUNCHED, PLANNED, VALIDATED, checkpoint


def test_files_jobs_and_models_whose_names_are_gone_are_listed_again_and_deleted_ones_are_not(tmp_path) -> None:
    store = open_store("memory:")
    app = app_in(tmp_path, store)
    sdk = sdk_of(app)
    files = [sdk.files.create(file=("f.jsonl", b"{}"), purpose="fine-tune").id for _ in range(3)]
    sdk.files.delete(files.pop())
    job = sdk.fine_tuning.jobs.create(model="tiny", training_file=files[0]).id
    for entry in (VALIDATED, PLANNED, LAUNCHED, checkpoint(5)):
        app.jobs.log(job).append(lambda _, entry=entry: entry)
    app.jobs.note_model(app.jobs.state(job).created)
    models = [model.id for model in sdk.models.list()]
    assert len(models) > 1
    for item in [*store.list("index/file/"), *store.list("index/ftjob/"), *store.list("made/")]:
        store.delete(item.key)
    assert not sdk.files.list().data and not sdk.fine_tuning.jobs.list().data
    _restore_index(app, lambda: None)
    assert {file.id for file in sdk.files.list()} == set(files)
    assert [job_.id for job_ in sdk.fine_tuning.jobs.list()] == [job]
    assert [model.id for model in sdk.models.list()] == models


def test_a_server_whose_keys_are_named_nowhere_lets_nobody_in_without_one(tmp_path) -> None:
    store = open_store("memory:")
    app = app_in(tmp_path, store)
    secret = app.keys.make(project="default", name="", scopes=("read",), lives_s=None).secret
    for item in [*store.list("index/key/")]:
        store.delete(item.key)
    http = http_of(AppState.of(store, app.models, app.clock))
    assert http.get("/v1/files").status_code == 401
    assert http.get("/v1/files", headers={"authorization": f"Bearer {secret}"}).status_code == 200
