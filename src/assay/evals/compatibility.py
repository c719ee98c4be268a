"""Whether a suite can be asked: a run's method answers it, its items have what is graded. First of all."""

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
from assay.scoring.python_graders import check_fence
from assay.scoring.sampler import check_prompt_budget
from assay.training.trainer.method_config import BinaryPredictions, ClassPredictions, MethodConfig


def supported_suite(path: Path, method: MethodConfig, *, owner: str) -> Suite:
    """The suite. Raises `ConfigError` for what the method cannot answer or its graders cannot grade, a
    `DataError` for items that cannot be read; `whose` method it is: `run 'r'`, `arm 'a'`."""
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
    """Raise `ConfigError` where the suite has a grader that is not trusted, and the kernel here cannot keep it
    in; or that needs a package which is missing."""
    check_fence(benchmark.grader for benchmark in suite.benchmarks if isinstance(benchmark, Generation))


def check_benchmarks_supported(suite: Suite, suite_path: str, method: MethodConfig, *, owner: str) -> None:
    """Raise `ConfigError` where a benchmark is of a type that the models of a method know nothing of."""
    from assay.training.methods.registry import method_of
    from assay.training.trainer.method import ExportableMethod

    predictions, method_instance = method.predictions, method_of(method)
    supported: list[type[Benchmark]] = []
    if isinstance(predictions, BinaryPredictions | ClassPredictions):
        supported.append(Classification)
    if not isinstance(predictions, BinaryPredictions):
        supported.append(HeldOutRows)
    if isinstance(method_instance, ExportableMethod) and method_instance.form == "language_model":
        supported += [MultipleChoice, BitsPerByte, Generation, RegistryBenchmark]
    for benchmark in suite.benchmarks:
        if not isinstance(benchmark, tuple(supported)):
            kinds = ", ".join(get_args(kind.model_fields["type"].annotation)[0] for kind in supported)
            raise ConfigError(
                f"{suite_path}: benchmark '{benchmark.name}' is of type {benchmark.type}, but {owner} is of "
                f"method '{method.type}', which answers only those of type {kinds}."
            )
        if isinstance(benchmark, Generation) and method.window_tokens is not None:
            check_prompt_budget(
                method.window_tokens, benchmark.sampling, f"{suite_path}: benchmark '{benchmark.name}': "
            )
