"""Check whether a run's method can be evaluated on a suite, and whether its items have what is graded."""

from pathlib import Path
from typing import get_args

from assay.base.errors import ConfigError
from assay.evals.config import (
    Benchmark,
    BitsPerByte,
    Classification,
    Generation,
    HeldOutRows,
    MultipleChoice,
    RegistryBenchmark,
    Suite,
    read_suite,
)
from assay.evals.items import checked_choices, checked_items
from assay.inference.protocol import check_prompt_budget
from assay.scoring.python_graders import check_fence
from assay.training.trainer.method_config import BinaryPredictions, ClassPredictions, MethodConfig

OF_LANGUAGE_MODELS: list[type[Benchmark]] = [MultipleChoice, BitsPerByte, Generation, RegistryBenchmark]


def supported_suite(path: Path, method: MethodConfig | None, *, owner: str) -> Suite:
    """Read a suite and check it against a method; without one, against any language model.

    Raises `ConfigError` for a benchmark that the method does not support or that its graders cannot grade, and
    `DataError` for unreadable items. `owner` names the method's owner in messages: `run 'r'`, `arm 'a'`.
    """
    suite = read_suite(path)
    check_benchmarks_supported(suite, str(path), method, owner=owner)
    refuse_unfenced_graders(suite)
    for benchmark in suite.benchmarks:
        if isinstance(benchmark, Generation):
            checked_items(benchmark, path.parent)
        elif isinstance(benchmark, MultipleChoice):
            items = checked_items(benchmark, path.parent)
            for item in items:
                checked_choices(item, path.parent / benchmark.items)
    return suite


def refuse_unfenced_graders(suite: Suite) -> None:
    """Raise `ConfigError` if a grader is untrusted and this kernel cannot sandbox it, or needs a missing package."""
    check_fence(benchmark.grader for benchmark in suite.benchmarks if isinstance(benchmark, Generation))


def _supported_by(method: MethodConfig) -> list[type[Benchmark]]:
    from assay.training.methods.registry import method_of
    from assay.training.trainer.method import ExportableMethod

    predictions, method_instance = method.predictions, method_of(method)
    supported: list[type[Benchmark]] = []
    if isinstance(predictions, BinaryPredictions | ClassPredictions):
        supported.append(Classification)
    if not isinstance(predictions, BinaryPredictions):
        supported.append(HeldOutRows)
    if isinstance(method_instance, ExportableMethod) and method_instance.form == "language_model":
        supported += OF_LANGUAGE_MODELS
    return supported


def check_benchmarks_supported(suite: Suite, suite_path: str, method: MethodConfig | None, *, owner: str) -> None:
    """Raise `ConfigError` if a benchmark's type is not supported by the method's models."""
    supported = OF_LANGUAGE_MODELS if method is None else _supported_by(method)
    what = "trained elsewhere" if method is None else f"of method '{method.type}'"
    for benchmark in suite.benchmarks:
        if not isinstance(benchmark, tuple(supported)):
            kinds = ", ".join(get_args(kind.model_fields["type"].annotation)[0] for kind in supported)
            raise ConfigError(
                f"{suite_path}: benchmark '{benchmark.name}' is of type {benchmark.type}, but {owner} is {what}, "
                f"which answers only those of type {kinds}."
            )
        if isinstance(benchmark, Generation) and method is not None and method.window_tokens is not None:
            check_prompt_budget(
                method.window_tokens, benchmark.sampling, f"{suite_path}: benchmark '{benchmark.name}': "
            )
