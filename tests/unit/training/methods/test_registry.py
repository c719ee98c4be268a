"""What every method in the registry keeps to, so that nobody else need know it."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

import assay.training.methods as methods
from assay.training.methods.registry import METHODS, Entry, method_of
from assay.training.trainer.method_config import MethodConfig

any_method = pytest.mark.parametrize("entry", METHODS, ids=lambda entry: entry.folder)


def config_class(entry: Entry) -> type[MethodConfig]:
    found = getattr(import_module(f"{methods.__name__}.{entry.folder}.config"), entry.config)
    assert issubclass(found, MethodConfig)
    return found


def test_every_folder_is_registered_once():
    folders = sorted(path.parent.name for path in Path(str(methods.__file__)).parent.glob("*/method.py"))
    assert sorted(entry.folder for entry in METHODS) == folders


@any_method
def test_a_configurations_type_is_its_folders_name(entry: Entry):
    assert get_args(config_class(entry).model_fields["type"].annotation) == (entry.folder,)


@any_method
def test_a_method_is_made_from_its_configuration(entry: Entry):
    result = method_of(config_class(entry).model_construct(type=entry.folder))
    assert type(result).__name__ == entry.method
    expected = {"build_model", "build_frozen_models", "weight", "tensors", "blank", "loss", "metrics", "predictions"}
    assert expected <= set(dir(type(result)))


def test_reading_a_recipe_imports_no_torch():
    code = "import sys; import assay.training.recipe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
