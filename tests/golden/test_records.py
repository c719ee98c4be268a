"""Each kind of record is written as its golden line has it, and a golden line is read whole."""

import json
from pathlib import Path
from typing import Any

import pytest

from assay.base.config import FrozenConfig, stored
from assay.base.digest import sha256_of_json
from assay.base.errors import DataError
from assay.decision.config import CampaignConfig
from assay.training.recipe import Recipe
from golden.write_records import FILE
from record_kinds import record_kinds

LINES = {json.loads(line)["kind"]: line for line in FILE.read_text(encoding="utf-8").splitlines()}
CONFIGS = json.loads(Path(__file__).with_name("configs.json").read_text(encoding="utf-8"))
RENEW = "if the change is meant, run 'python tests/golden/write_records.py'"


def test_each_kind_has_a_golden_line_and_no_line_is_of_another() -> None:
    assert sorted(LINES) == sorted(record_kinds()), RENEW


@pytest.mark.parametrize("kind", sorted(record_kinds()))
def test_a_golden_record_is_written_read_and_named_as_before(kind: str) -> None:
    record_class, line = record_kinds()[kind], LINES.get(kind, "{}")
    try:
        record = record_class.from_json(line, source=FILE)
    except DataError as error:
        pytest.fail(f"{error} {RENEW}.")
    assert record.to_json() == line, RENEW
    assert record.digest() == sha256_of_json(json.loads(line))


def test_everything_stored_is_at_version_1_until_a_release_after_the_first_changes_it() -> None:
    classes: list[Any] = [*record_kinds().values(), Recipe, CampaignConfig]
    assert {class_.__name__: class_.version for class_ in classes if class_.version != 1} == {}


@pytest.mark.parametrize("config_class", [Recipe, CampaignConfig], ids=lambda item: item.__name__)
def test_a_stored_configuration_is_read_and_written_as_before(config_class: type[FrozenConfig]) -> None:
    tree = CONFIGS[config_class.__name__]
    assert stored(config_class, tree, where="golden").model_dump(mode="json") == tree
