"""Finds the saved calibration for a recipe, and explains how the nearest other one differs.

Calibrations are saved in the home by recipe, code version and processor, and reused while these are the same.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from assay.base.clock import utc_text
from assay.base.code_version import code_version
from assay.base.config import changed_leaves, dotted_leaves
from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError, DataError
from assay.base.units import number_of
from assay.data.dataset.dataset import Dataset
from assay.elastic.processor import processor_here
from assay.records.processor import Processor
from assay.records.throughput import ThroughputCalibration
from assay.store.home import Home
from assay.training.recipe import Recipe, recipe_sha256

NAMED_KEYS = 3
"""Number of differing keys that are named with both values."""


class CalibrationKey(NamedTuple):
    """What a calibration is valid for."""

    recipe_sha256: str
    code_version: str
    processor: Processor

    @classmethod
    def here(cls, recipe: Recipe, dataset: Dataset) -> "CalibrationKey":
        """Return the key of a recipe with this code on this machine."""
        tree = recipe.model_dump(mode="json")
        return cls(recipe_sha256(tree, dataset.fingerprint), code_version(), processor_here())

    def file_in(self, home: Home) -> Path:
        """Return the path of the saved calibration."""
        name = sha256_of_json([self.recipe_sha256, self.code_version, self.processor.to_tree()])
        return home.calibrations / f"{name[:32]}.json"


def calibrated_parts(recipe: Recipe) -> dict[str, Any]:
    """Return dotted key -> value of the recipe, without the dataset's path and the evaluation."""
    leaves = dotted_leaves(recipe.model_dump(mode="json"))
    return {key: value for key, value in leaves if key != "data.dataset" and key.split(".")[0] != "evaluation"}


def saved_calibration(home: Home, key: CalibrationKey) -> ThroughputCalibration | None:
    """Return the calibration saved for `key`, or None."""
    path = key.file_in(home)
    if not path.is_file():
        return None
    return ThroughputCalibration.from_json(path.read_bytes(), source=path)


def load_calibration(path: Path, recipe: Recipe, dataset: Dataset) -> ThroughputCalibration:
    """Load a calibration made elsewhere. Raises `ConfigError` if it is for another recipe or dataset."""
    found = ThroughputCalibration.from_json(path.read_bytes(), source=path)
    if found.recipe_sha256 != recipe_sha256(recipe.model_dump(mode="json"), dataset.fingerprint):
        keys = ", ".join(_differing_keys(found, calibrated_parts(recipe)))
        raise ConfigError(
            f"--calibration {path}: it is of another recipe or dataset ('{found.recipe_name}', dataset "
            f"{found.dataset_fingerprint[:12]}…; here '{recipe.name}', {dataset.fingerprint[:12]}…"
            f"{f'; {keys}' if keys else ''}). Make one "
            "there with this recipe and the same changes: 'assay throughput RECIPE KEY=VALUE --out FILE'."
        )
    return found


def nearest_other(home: Home, key: CalibrationKey, recipe: Recipe, dataset: Dataset) -> str:
    """Describe how the most similar saved calibration differs; empty if none is saved."""
    parts = calibrated_parts(recipe)
    others = []
    for path in sorted(home.calibrations.glob("*.json")):
        try:
            found = ThroughputCalibration.from_json(path.read_bytes(), source=path)
        except (DataError, OSError):
            continue  # another code's, or damaged: it is no help, and no obstacle
        others.append((_differences(found, key, parts, dataset), found))
    if not others:
        return ""
    differences, nearest = min(others, key=lambda other: (len(other[0]), -other[1].measured_s))
    more = len(differences) - NAMED_KEYS
    listed = ", ".join(differences[:NAMED_KEYS]) + (f" and {number_of(more, 'other')}" if more > 0 else "")
    return f"the nearest calibration ('{nearest.recipe_name}', {utc_text(nearest.measured_s)[:10]}) has {listed}"


def _differences(
    found: ThroughputCalibration, key: CalibrationKey, parts: Mapping[str, Any], dataset: Dataset
) -> list[str]:
    differences = []
    if found.dataset_fingerprint != dataset.fingerprint:
        differences.append("another dataset")
    if found.code_version != key.code_version:
        differences.append(f"code {found.code_version} (here {key.code_version})")
    if found.processor != key.processor:
        differences.append(f"another machine ({found.processor.model})")
    if found.recipe_sha256 != key.recipe_sha256:
        differences += _differing_keys(found, parts)
    return differences or ["another recipe"]


def _differing_keys(found: ThroughputCalibration, parts: Mapping[str, Any]) -> list[str]:
    return [
        f"{key}={_value_text(then)} (here {_value_text(here)})"
        for key, (here, then) in changed_leaves(parts, found.recipe).items()
    ]


def _value_text(value: Any) -> str:
    return "nothing" if value is None else f"{value:.40}" if isinstance(value, str) else f"{value}"
