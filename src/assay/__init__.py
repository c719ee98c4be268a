"""From a promising pilot to decision-ready evidence.

    import assay

    run = assay.train("recipes/sft/digits.yaml", "trainer.epochs=2", workers=2)
    assert run.audit().facts.verdict == "pass"
    losses = run.curve("loss").values
    assay.compare("baseline-1129", run)

Runs are those of the home in `$ASSAY_HOME`, by default `runs/`. What computes is a command in a process of its own, so
that signals, threads and crashes of a run do not touch the caller. Facts are the objects behind `--json`, whose fields
docs/json.md explains. Wrong input raises `AssayError` with the sentence that the command would print.

Each name below is loaded when it is first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.api.campaigns import Campaign, decide
    from assay.api.comparing import compare, overview
    from assay.api.datasets import Dataset
    from assay.api.recipes import Recipe
    from assay.api.report import Report
    from assay.api.training import Run, run, runs, train
    from assay.base.errors import AssayError
    from assay.checks.resume.observe import observe
    from assay.integrations.recording import record
    from assay.store.metrics.curves import Curve

__all__ = [
    "AssayError",
    "Campaign",
    "Curve",
    "Dataset",
    "Recipe",
    "Report",
    "Run",
    "compare",
    "decide",
    "observe",
    "overview",
    "record",
    "run",
    "runs",
    "train",
]

_MODULES = {
    "AssayError": "assay.base.errors",
    "Campaign": "assay.api.campaigns",
    "Curve": "assay.store.metrics.curves",
    "Dataset": "assay.api.datasets",
    "Recipe": "assay.api.recipes",
    "Report": "assay.api.report",
    "Run": "assay.api.training",
    "compare": "assay.api.comparing",
    "decide": "assay.api.campaigns",
    "observe": "assay.checks.resume.observe",
    "overview": "assay.api.comparing",
    "record": "assay.integrations.recording",
    "run": "assay.api.training",
    "runs": "assay.api.training",
    "train": "assay.api.training",
}
"""Public name -> the module that has it."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'assay' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
