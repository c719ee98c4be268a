"""A job's dataset: the rows of its files, looked at line by line, written down, and tokenised once.

    training file   --(every line checked)--> rows.jsonl --> shards, manifest
    validation file --(likewise, first)----->    |
                                                 column `held_out`, by which the run's split goes

Without a validation file a part of the training file is held out, by the hash of a row's text or prompt. A
row that both files have is refused: whoever evaluates on what was trained on measures memory.
"""

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from assay.base.errors import DataError
from assay.data.dataset.build import build_dataset
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.fields import BuildConfig, row_reader
from assay.data.dataset.formats.rows import RowReader
from assay.data.dataset.label_values import LabelKind
from assay.data.dataset.split import whole_view
from assay.records.fine_tuning_job import JobCreated
from assay.serving.base_models import BaseModelConfig, TrainableConfig, template_recipe
from assay.serving.files import FileDamagedError, FileShelf
from assay.serving.methods import ServedMethod
from assay.training.trainer.method_config import ClassPredictions, MethodConfig, NumberPredictions
from assay.workers.fine_tuning.training_file import MAX_FAULTS, nobody_listens, read_training_file

ROWS_FILE = "rows.jsonl"
HELD_OUT = "held_out"
"""Says of each row whether it is the validation file's."""


class InvalidFileError(DataError):
    """A file that cannot be used; `param` is the parameter that named it."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class _Pair(NamedTuple):
    """A row that both files have, by its lines."""

    validation_line: int
    training_line: int


class _Checked(NamedTuple):
    """What a line is held against."""

    reader: RowReader
    fault_of_label: Callable[[str | float], str | None]


def job_split(created: JobCreated, trainable: TrainableConfig) -> dict[str, Any]:
    """The split of the run's recipe."""
    if created.validation_file is not None:
        return {"type": "column", "column": HELD_OUT, "validation": ["true"]}
    return {"type": "hash", "column": "shard_id", "validation_fraction": trainable.validation_fraction}


def build_job_dataset(
    folder: Path,
    files: FileShelf,
    created: JobCreated,
    *,
    base: BaseModelConfig,
    trainable: TrainableConfig,
    method: ServedMethod,
) -> None:
    """Make it in `folder`, or go on where that was interrupted; `InvalidFileError` says what is wrong, and
    where."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = template_recipe(trainable.recipe).method
    config = BuildConfig(
        tokenizer=base.tokenizer,
        chat_template=base.chat_template if method.format in ("chat", "pairs", "prompts") else None,
        format=method.format,
        label_field="label" if method.format == "labelled" else None,
        label_kind=_label_kind(trained),
        metadata_fields=(HELD_OUT,) if created.validation_file is not None else (),
        key_is_text=True,
        max_tokens=trainable.max_tokens,
    )
    rows = folder / ROWS_FILE
    unfinished = rows.with_suffix(".unfinished")
    with unfinished.open("wb") as out:
        checked = _Checked(row_reader(config), trained.fault_of_label)
        _write_rows(files, created, checked, out)
    unfinished.replace(rows)
    try:
        build_dataset([rows], folder, config, name=created.job_id, workers=1)
    except DataError as error:
        message = f"Invalid file {created.training_file}: {error}"
        raise InvalidFileError(message, "training_file") from error
    if created.validation_file is not None:
        _refuse_empty_side(Dataset.open(folder), created, trainable.max_tokens)


def _label_kind(method: MethodConfig) -> LabelKind | Literal["auto"]:
    """What labels are for the model, however few or many there are."""
    match method.predictions:
        case ClassPredictions():
            return "classes"
        case NumberPredictions():
            return "number"
        case _:
            return "auto"


def _refuse_empty_side(dataset: Dataset, created: JobCreated, max_tokens: int) -> None:
    """Rows that must not be cut are left out where they are too long: all of a file's may be."""
    held_out = int(whole_view(dataset).sum_of(HELD_OUT))
    sides = {"training_file": dataset.manifest.num_rows - held_out, "validation_file": held_out}
    for param, num_rows in sides.items():
        if not num_rows:
            raise InvalidFileError(
                f"Invalid file {getattr(created, param)}: each of its rows has more than {max_tokens:,} "
                "tokens, which this model is not trained on.",
                param,
            )


def _write_rows(files: FileShelf, created: JobCreated, checked: _Checked, out: IO[bytes]) -> None:
    """The validation file's first: a digest of each of its rows is kept, of the training file nothing."""
    if created.validation_file is None:
        _write_file(files, created, "training_file", checked, out, None, nobody_listens)
        return
    lines: dict[int, int] = {}
    pairs: list[_Pair] = []

    def is_known(line: int, digest: int) -> None:
        if digest in lines and len(pairs) < MAX_FAULTS:
            pairs.append(_Pair(lines[digest], line))

    held_out, trained = {HELD_OUT: True}, {HELD_OUT: False}
    _write_file(
        files, created, "validation_file", checked, out, held_out, lambda n, it: lines.setdefault(it, n)
    )
    _write_file(files, created, "training_file", checked, out, trained, is_known)
    if pairs:
        said = "; ".join(f"line {pair.validation_line} is line {pair.training_line} there" for pair in pairs)
        more = f" (the first {MAX_FAULTS} are named)" if len(pairs) == MAX_FAULTS else ""
        raise InvalidFileError(
            f"Invalid file {created.validation_file}: rows of it are in the training file "
            f"{created.training_file}, too{more}: {said}. Take them out of one of the two.",
            "validation_file",
        )


def _write_file(
    files: FileShelf,
    created: JobCreated,
    param: str,
    checked: _Checked,
    out: IO[bytes],
    beside: dict[str, Any] | None,
    seen: Callable[[int, int], object],
) -> None:
    file_id: str = getattr(created, param)
    if files.find(file_id, created.project) is None:
        raise InvalidFileError(f"File {file_id} was deleted before the job could read it.", param)
    try:
        read = read_training_file(
            files.lines(file_id),
            checked.reader,
            out,
            beside=beside,
            seen=seen,
            fault_of_label=checked.fault_of_label,
        )
    except FileDamagedError as error:
        raise InvalidFileError(str(error), param) from error
    if (problem := read.problem(file_id)) is not None:
        raise InvalidFileError(problem, param)
