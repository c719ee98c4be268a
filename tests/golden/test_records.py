"""What earlier versions wrote is read by this one: a file for every kind of record, of every version."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.base.config import FrozenConfig, stored
from assay.base.digest import sha256_of_json
from assay.evaluation.decision.config import CampaignConfig
from assay.training.recipe import Recipe
from record_kinds import record_kinds

FOLDER = Path(__file__).parent / "records"
FILES = sorted(FOLDER.glob("*/v*.json"))
CONFIGS = Path(__file__).parent / "stored_configs"


def named(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


@pytest.mark.parametrize("kind", sorted(record_kinds()))
def test_every_version_of_every_kind_has_a_golden_file(kind: str) -> None:
    versions = range(1, record_kinds()[kind].version + 1)
    missing = [number for number in versions if not (FOLDER / kind / f"v{number}.json").is_file()]
    assert not missing, f"'python {FOLDER.name}/write_missing.py' writes that of today's version"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_golden_record_is_read_whole_and_keeps_its_digest(path: Path) -> None:
    tree = json.loads(path.read_text())
    record_class = record_kinds()[path.parent.name]
    record = record_class.from_json(path.read_text(), source=path)
    assert record_class.from_json(record.to_json(), source="as written today") == record
    if tree["version"] == record_class.version and not _nests_upgraded(record.model_dump(mode="json")):
        assert _without_what_is_new(record.to_tree(), tree) == tree
        assert record.digest() == sha256_of_json(tree), "name the fields that are new in `added`"


def _nests_upgraded(tree: Any) -> bool:
    """Whether a record in it is of a later version than the first, and so written otherwise than it was."""
    below = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return any((isinstance(each, dict) and "version" in each) or _nests_upgraded(each) for each in below)


def _without_what_is_new(written: Any, golden: Any) -> Any:
    if isinstance(written, dict) and isinstance(golden, dict):
        return {key: _without_what_is_new(written[key], golden[key]) for key in golden if key in written}
    if isinstance(written, list) and isinstance(golden, list) and len(written) == len(golden):
        return [_without_what_is_new(*pair) for pair in zip(written, golden, strict=True)]
    return written


@pytest.mark.parametrize("config_class", [Recipe, CampaignConfig])
def test_every_version_of_a_stored_configuration_is_read(config_class: type[FrozenConfig]) -> None:
    for version in range(1, config_class.version + 1):
        tree = json.loads((CONFIGS / config_class.__name__ / f"v{version}.json").read_text())
        config = stored(config_class, tree, where="golden")
        assert stored(config_class, config.model_dump(mode="json"), where="today") == config
        if version == config_class.version:
            assert _without_what_is_new(config.model_dump(mode="json"), tree) == tree


def test_writing_what_is_missing_changes_nothing_that_is_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {path: path.read_bytes() for path in FILES}
    runpy.run_path(str(FOLDER / "write_missing.py"), run_name="__main__")
    assert capsys.readouterr().out == ""
    assert {path: path.read_bytes() for path in sorted(FOLDER.glob("*/v*.json"))} == before
