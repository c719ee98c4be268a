"""Builds a job's dataset: validate its files line by line, write their rows, tokenize them.

    training file   --(every line validated)--> rows.jsonl --> shards, manifest
    validation file --(likewise, first)-------->    |
                                                    column `held_out`, used by the run's split

Without a validation file, a part of the training file is held out by a hash of the text or prompt. Rows in both files
are rejected, because evaluating on training rows measures memorization.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

from assay.base.errors import DataError
from assay.data.dataset.build import build_dataset
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.fields import BuildConfig, row_reader
from assay.data.dataset.formats.rows import RowReader
from assay.data.dataset.label_values import LabelKind
from assay.data.dataset.split import whole_view
from assay.records.fine_tuning_job import JobCreated
from assay.serving.base_models import BaseModelConfig, TrainableConfig, template_recipe
from assay.serving.files import FileDamagedError, FileRepository
from assay.serving.methods import ServedMethod
from assay.training.trainer.method_config import ClassPredictions, MethodConfig, NumberPredictions
from assay.workers.fine_tuning.training_file import MAX_FAULTS, file_problem, nobody_listens, read_training_file

ROWS_FILE = "rows.jsonl"
HELD_OUT = "held_out"
"""Column: whether a row is from the validation file."""


LabelProblem = Callable[[str | float], str | None]
"""Label -> why it is invalid, or None."""


class InvalidFileError(DataError):
    """An unusable file; `param`: the request parameter that named it."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def job_split(created: JobCreated, trainable: TrainableConfig) -> dict[str, Any]:
    """Return the split of the run's recipe."""
    if created.validation_file is not None:
        return {"type": "column", "column": HELD_OUT, "validation": ["true"]}
    return {"type": "hash", "column": "shard_id", "validation_fraction": trainable.validation_fraction}


def build_job_dataset(
    folder: Path,
    files: FileRepository,
    created: JobCreated,
    *,
    base: BaseModelConfig,
    trainable: TrainableConfig,
    method: ServedMethod,
) -> None:
    """Build the dataset in `folder`, or continue an interrupted build. Raises `InvalidFileError`."""
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
        _write_rows(files, created, row_reader(config), trained.label_problem, out)
    unfinished.replace(rows)
    try:
        build_dataset([rows], folder, config, name=created.job_id, workers=1)
    except DataError as error:
        message = f"Invalid file {created.training_file}: {error}"
        raise InvalidFileError(message, "training_file") from error
    if created.validation_file is not None:
        _check_no_empty_split(Dataset.open(folder), created, trainable.max_tokens)


def _label_kind(method: MethodConfig) -> LabelKind | Literal["auto"]:
    """Return the label type that the method needs, independent of the values in the file."""
    match method.predictions:
        case ClassPredictions():
            return "classes"
        case NumberPredictions():
            return "number"
        case _:
            return "auto"


def _check_no_empty_split(dataset: Dataset, created: JobCreated, max_tokens: int) -> None:
    """Raise `InvalidFileError` if all rows of a file were too long."""
    held_out = int(whole_view(dataset).sum_of(HELD_OUT))
    sides = {"training_file": dataset.manifest.num_rows - held_out, "validation_file": held_out}
    for param, num_rows in sides.items():
        if not num_rows:
            raise InvalidFileError(
                f"Invalid file {getattr(created, param)}: each of its rows has more than {max_tokens:,} "
                "tokens, the limit of this model.",
                param,
            )


def _write_rows(
    files: FileRepository, created: JobCreated, reader: RowReader, label_problem: LabelProblem, out: IO[bytes]
) -> None:
    """Write the validation file's rows first, keeping a digest of each to find them in the training file."""
    write = partial(_write_file, files, created, reader, label_problem, out)
    if created.validation_file is None:
        write("training_file", None, nobody_listens)
        return
    lines: dict[int, int] = {}
    pairs: list[str] = []

    def is_known(line: int, digest: int) -> None:
        if digest in lines and len(pairs) < MAX_FAULTS:
            pairs.append(f"line {lines[digest]} is line {line} there")

    held_out, trained = {HELD_OUT: True}, {HELD_OUT: False}
    write("validation_file", held_out, lambda n, it: lines.setdefault(it, n))
    write("training_file", trained, is_known)
    if pairs:
        more = f" (the first {MAX_FAULTS} are listed)" if len(pairs) == MAX_FAULTS else ""
        raise InvalidFileError(
            f"Invalid file {created.validation_file}: some of its rows are also in the training file "
            f"{created.training_file}, {more}: {'; '.join(pairs)}. Remove them from one of the files.",
            "validation_file",
        )


def _write_file(
    files: FileRepository,
    created: JobCreated,
    reader: RowReader,
    label_problem: LabelProblem,
    out: IO[bytes],
    param: str,
    extra_fields: dict[str, Any] | None,
    seen: Callable[[int, int], object],
) -> None:
    file_id: str = getattr(created, param)
    if files.find(file_id, created.project) is None:
        raise InvalidFileError(f"File {file_id} was deleted before the job read it.", param)
    try:
        num_rows, faults = read_training_file(
            files.lines(file_id),
            reader,
            out,
            extra_fields=extra_fields,
            seen=seen,
            label_problem=label_problem,
        )
    except FileDamagedError as error:
        raise InvalidFileError(str(error), param) from error
    if (problem := file_problem(file_id, num_rows, faults)) is not None:
        raise InvalidFileError(problem, param)
