"""The configuration of a suite: its benchmarks and how completions become scores.

    name: own-code
    benchmarks:
      - {type: bits_per_byte, name: source, files: ["src/**/*.py"]}
      - {type: generation, name: sums, items: sums.jsonl, grader: {type: string_check, ...}}

Paths are relative to the suite's file. Imports no torch.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from assay.base.config import FrozenConfig, first_repeated, read_config_file, validated
from assay.base.digest import sha256_of_json
from assay.inference.protocol import SamplingParams
from assay.scoring.graders import Grader


class _Benchmark(FrozenConfig):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Used in file names and tables."""

    failure_modes: tuple[str, ...] = ()
    """Failure modes that it detects, by their names in the coverage file."""

    chunk_items: PositiveInt = 32
    """Items that are scored and stored together; a killed worker repeats at most this many."""


class MultipleChoice(_Benchmark):
    """Scores 1 if the choice with the highest likelihood is the right one.

    Items are lines of JSON: `prompt`, `choices` (texts that follow it), `answer` (index from 0), and optionally `id`
    and `cluster`.
    """

    type: Literal["multiple_choice"]

    items: str
    """JSONL file."""

    normalise: Literal["none", "bytes", "tokens"] = "none"
    """Divides a choice's log-likelihood by its length, so that short choices are not favoured."""


class Generation(_Benchmark):
    """Samples a completion and grades it.

    Items are lines of JSON: `prompt` (a text) or `messages` (a conversation), the fields that the grader's templates
    name as `item.…`, and optionally `id` and `cluster`.
    """

    type: Literal["generation"]

    items: str
    """JSONL file."""

    grader: Grader

    sampling: SamplingParams = SamplingParams()

    higher_is_better: bool = True


class BitsPerByte(_Benchmark):
    """Bits that the model needs per byte of held-out text; lower is better.

    A text is cut into blocks of `block_bytes`; a block is an item, its file is its cluster. Tokens are predicted from
    at least half a window of preceding text (except at the start of a file), so the result does not depend on where
    windows are cut.
    """

    type: Literal["bits_per_byte"]

    files: tuple[str, ...] = Field(min_length=1)
    """Glob patterns; `**` matches folders in between."""

    exclude: tuple[str, ...] = ()
    """Glob patterns of files to leave out."""

    block_bytes: PositiveInt = 1024

    window_tokens: PositiveInt | None = None
    """Longest context; null uses the model's own."""

    ngram: PositiveInt = 13
    """Length of the n-grams that the contamination check searches."""


class RegistryBenchmark(_Benchmark):
    """An eval from a registry folder of OpenAI Evals, unchanged."""

    type: Literal["registry"]

    registry: str
    """Folder that holds `evals/` and `data/`."""

    eval: str
    """Its name, e.g. `arithmetic.dev.v0`, or an alias."""


class Classification(_Benchmark):
    """The rows that a classifier's own recipe holds out for validation; a row is an item.

    Clusters are the values of the recipe's split column, if it splits by hash.
    """

    type: Literal["classification"]

    score: Literal["correct", "log_loss"] = "correct"
    """`correct`: 1 if the more probable class is the label. `log_loss`: nats; lower is better."""


class HeldOutRows(_Benchmark):
    """The rows that a run's own recipe holds out for validation, with a score of the run's method.

    For reward models and DPO, a row is a pair. Clusters are as in `classification`.
    """

    type: Literal["held_out"]

    score: str | None = None
    """One of the method's metrics (docs/methods.md), with its unit and direction: `nats_per_token` for SFT, `accuracy`
    or `margin` for pairs. Null: the metric that compares runs."""

    where: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    """Uses only rows whose columns have these values, e.g. `{language: de}`; null is a missing value."""


Benchmark = Annotated[
    MultipleChoice | Generation | BitsPerByte | RegistryBenchmark | Classification | HeldOutRows,
    Field(discriminator="type"),
]


class Suite(FrozenConfig):
    """The benchmarks that a checkpoint is evaluated on."""

    name: str

    benchmarks: tuple[Benchmark, ...] = Field(min_length=1)

    def sha256(self) -> str:
        """SHA-256 of the suite as written; `contents.suite_sha256` includes the files that it names."""
        return sha256_of_json(self.model_dump(mode="json"))

    @model_validator(mode="after")
    def _names_differ(self) -> "Suite":
        if twice := first_repeated([benchmark.name for benchmark in self.benchmarks]):
            raise ValueError(f"two benchmarks are named '{twice}'")
        return self


def read_suite(path: Path, overrides: tuple[str, ...] = ()) -> Suite:
    """Read and check a suite's file; a `ConfigError` names every wrong key."""
    return validated(Suite, read_config_file(path, overrides))
