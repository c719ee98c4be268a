"""A job's files as one dataset: what is held out, and what is refused by its lines."""

import json
from pathlib import Path

import pytest

from assay.base.config import LoadedConfig, validated
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import ColumnSplit, split_view, whole_view
from assay.records.fine_tuning_job import JobCreated
from assay.records.uploaded_file import FileCreated
from assay.serving.base_models import read_base_models, template_recipe
from assay.serving.files import FileRepository
from assay.serving.ids import new_id
from assay.serving.methods import SERVED_METHODS
from assay.store.objects import open_store
from assay.workers.fine_tuning.job_dataset import InvalidFileError, build_job_dataset, job_split
from clocks import ManualClock
from served import RECIPE, write_models
from served_talker import lines, rows, write_talker


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    return read_base_models(write_talker(tmp_path_factory.mktemp("models")))["talker"]


@pytest.fixture
def files() -> FileRepository:
    return FileRepository(open_store("memory:"), ManualClock(1_800_000_000.0))


def put(files: FileRepository, data: bytes) -> str:
    file_id = new_id("file", 1_800_000_000.0)
    sink = files.sink(file_id)
    sink.write(data)
    sink.finish()
    files.put(
        FileCreated(
            file_id=file_id, project="p", at_s=0.0, filename="f", purpose="fine-tune",
            num_bytes=sink.num_bytes, sha256=sink.sha256, content=file_id,
        )
    )  # fmt: skip
    return file_id


def long_row() -> dict:
    """Of more tokens than `talker` is trained on."""
    requested = {"role": "user", "content": "return " * 300}
    return {"messages": [requested, {"role": "assistant", "content": "yield"}]}


def build(files: FileRepository, talker, folder: Path, method: str, training: bytes, validation: bytes | None):
    """The dataset, and the split of its job's recipe."""
    created = JobCreated(
        job_id="ftjob-" + "0" * 24, project="p", at_s=1.0, model="talker", base={}, method=method,
        hyperparameters={}, training_file=put(files, training), seed=1, request_sha256="",
        validation_file=None if validation is None else put(files, validation),
    )  # fmt: skip
    trainable = talker.config.methods[method]
    build_job_dataset(folder, files, created, base=talker.config, trainable=trainable, method=SERVED_METHODS[method])
    return Dataset.open(folder), job_split(created, trainable)


def column(view, name: str) -> list:
    groups = range(len(view.num_rows))
    return [value for group in groups for value in view.read(group, [name])[name].to_pylist()]


@pytest.mark.parametrize("method", ["supervised", "dpo", "reinforcement"])
def test_the_validation_files_rows_are_held_out_and_no_others(files, talker, tmp_path, method) -> None:
    training, validation = rows(method, 9), rows(method, 4, seed=1)
    dataset, split = build(files, talker, tmp_path, method, lines(training), lines(validation))
    config = validated(ColumnSplit, LoadedConfig(split, {}))
    assert int(split_view(dataset, config, "train").num_rows.sum()) == 9
    alone = build(files, talker, tmp_path / "alone", method, lines(validation), None)[0]
    held_out = column(split_view(dataset, config, "validation"), "input_ids")
    assert held_out == column(whole_view(alone), "input_ids") and len(held_out) == 4


@pytest.mark.parametrize(
    ("label", "fits", "others", "trained"),
    [
        ({}, [0, 1, True, 1.0], ["function", 2, 0.5], "0 and 1"),
        ({}, ["0", "1"], ["2"], "0 and 1"),
        ({"type": "binary", "positive": "spam"}, ["spam", "ham"], [], ""),
        ({"type": "classes", "names": ["a", "b", "1"]}, ["a", "b", "1"], ["module"], "'a', 'b', '1'"),
        (
            {"type": "classes", "names": [*map(str, range(30))]},
            [*range(30)],
            [30],
            "'0', '1', '2', '3', '4', …",
        ),
        ({"type": "number"}, [7, 8, 9], ["long", "2"], "numbers"),
    ],
)
def test_a_label_that_the_model_does_not_learn_is_a_fault_of_its_line(
    files, talker, tmp_path, label, fits, others, trained
) -> None:
    method = {**RECIPE["method"], **({"label": label} if label else {})}
    models = write_models(tmp_path / "models", recipe={**RECIPE, "method": method})
    base = read_base_models(models)["tiny"]
    base = base._replace(config=base.config.model_copy(update={"tokenizer": talker.config.tokenizer}))
    good = lines([{"text": f"row {n}", "label": fit} for n, fit in enumerate(fits)])
    dataset, _ = build(files, base, tmp_path / "good", "classification", good, None)
    template_recipe(base.config.methods["classification"].recipe).method.check_dataset(dataset.manifest)
    first, bad = len(fits) + 1, lines([{"text": "w", "label": other} for other in others])
    output = "; ".join(
        f"line {first + n}: 'label' is {other!r}, and this model's are {trained}" for n, other in enumerate(others)
    )
    for training, validation, param in (
        (good + bad, None, "training_file"),
        (good, good + bad, "validation_file"),
    ):
        if others:
            with pytest.raises(InvalidFileError) as refused:
                build(files, base, tmp_path / param, "classification", training, validation)
            assert refused.value.param == param and str(refused.value).endswith(f": {output}")


def test_a_grader_reads_the_line_as_it_was_sent(files, talker, tmp_path) -> None:
    training = rows("reinforcement", 3)
    dataset, split = build(
        files, talker, tmp_path, "reinforcement", lines(training), lines(rows("reinforcement", 2, seed=1))
    )
    view = split_view(dataset, validated(ColumnSplit, LoadedConfig(split, {})), "train")
    assert [json.loads(item) for item in column(view, "item")] == training


def test_rows_that_both_files_have_are_refused_by_their_lines(files, talker, tmp_path) -> None:
    training, validation = rows("supervised", 5), rows("supervised", 3, seed=1)
    spaced = lines(validation[:1]) + b"\n" + json.dumps(training[3], indent=None, separators=(", ", " : ")).encode()
    with pytest.raises(InvalidFileError, match="line 3 is line 4 there") as refused:
        build(files, talker, tmp_path, "supervised", lines(training), spaced)
    assert refused.value.param == "validation_file"
    assert not (tmp_path / "manifest.json").exists()


def test_a_prompt_that_both_files_ask_is_shared_whatever_stands_beside_it(files, talker, tmp_path) -> None:
    training = rows("reinforcement", 3)
    with pytest.raises(InvalidFileError, match="line 1 is line 2 there"):
        other = lines([{**training[1], "wanted": "else"}])
        build(files, talker, tmp_path, "reinforcement", lines(training), other)


@pytest.mark.parametrize(
    ("training", "validation", "param"),
    [
        (b"{}\n", None, "training_file"),
        (b"no json\n", None, "training_file"),
        (lines(rows("supervised", 2)), b"", "validation_file"),
        (lines(rows("supervised", 2)), lines([long_row()]), "validation_file"),
        (lines([long_row()]), lines(rows("supervised", 2)), "training_file"),
        (lines(rows("supervised", 2)), b'{"messages": [{"role": "human", "content": "a"}]}', "validation_file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_by_its_parameter(
    files, talker, tmp_path, training, validation, param
) -> None:
    with pytest.raises(InvalidFileError) as refused:
        build(files, talker, tmp_path, "supervised", training, validation)
    assert refused.value.param == param


@pytest.mark.parametrize("param", ["training_file", "validation_file"])
def test_a_file_that_rotted_since_its_upload_fails_the_job_by_name(files, talker, tmp_path, param, monkeypatch) -> None:
    own_put, ids = put, []

    def put_damaged(files: FileRepository, data: bytes) -> str:
        ids.append(own_put(files, data))
        if (param == "training_file") == (len(ids) == 1):
            store = files.store
            store.put(f"bytes/{files.find(ids[-1], 'p').created.content}", data.replace(b"return", b"yields", 1))
        return ids[-1]

    monkeypatch.setitem(globals(), "put", put_damaged)
    training, validation = rows("supervised", 9), rows("supervised", 4, seed=1)
    with pytest.raises(InvalidFileError, match=r"is damaged: its bytes have sha256.*Upload it again") as found:
        build(files, talker, tmp_path, "supervised", lines(training), lines(validation))
    assert found.value.param == param
