"""What transformers finds in its models is found once, and again where a model has changed."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.models.lean_transformers import HIDDEN, READER, Exported, cached_reader, lean_transformers


class _Reader:
    """Stands where transformers' own stands: module -> the names in its file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "import_utils.py"
        self.file.write_text("")
        self.calls: list[Path] = []

    def __call__(self, module_path: str | Path, prefix: str | None = None) -> Exported:
        folder = Path(module_path)
        self.calls.append(folder)
        before = f"{prefix}." if prefix else ""
        names = {
            f"{before}{path.parent.name}.{path.stem}": {*path.read_text().split()}
            for path in sorted(folder.glob("*/*.py"))
        }
        return {frozenset(): names, frozenset(("torch", "vision")): {f"{before}of.pictures": {"Picture"}}}


@pytest.fixture
def reader(tmp_path: Path) -> _Reader:
    (tmp_path / "models" / "bert").mkdir(parents=True)
    (tmp_path / "models" / "bert" / "modeling_bert.py").write_text("BertModel BertConfig")
    return _Reader(tmp_path)


@pytest.fixture(autouse=True)
def _bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


def _request(reader: _Reader, cache_file: Path) -> Callable[..., Exported]:
    """As a process does that begins now."""
    return cached_reader(reader, reader.file, cache_file)


def test_both_answers_are_those_of_transformers_and_come_from_one_look(reader: _Reader, tmp_path: Path) -> None:
    models, request = tmp_path / "models", _request(reader, tmp_path / "kept.json")
    structures = [request(models, prefix="models"), request(models / "__init__.py")]
    assert reader.calls == [models]
    assert structures == [reader(models, prefix="models"), reader(models)]


def test_a_later_process_reads_nothing_until_a_model_is_new_or_other(reader: _Reader, tmp_path: Path) -> None:
    models, cache_file = tmp_path / "models", tmp_path / "below" / "kept.json"
    _request(reader, cache_file)(models)
    reader.calls.clear()
    assert _request(reader, cache_file)(models)[frozenset()] == {"bert.modeling_bert": {"BertModel", "BertConfig"}}
    assert not reader.calls
    (models / "bert" / "modeling_bert.py").write_text("BertModel BertConfig BertOther")
    assert "BertOther" in _request(reader, cache_file)(models)[frozenset()]["bert.modeling_bert"]
    (models / "bert" / "tokens.py").write_text("Tokens")
    assert _request(reader, cache_file)(models)[frozenset()]["bert.tokens"] == {"Tokens"}
    reader.file.write_text("reads otherwise now")
    reader.calls.clear()
    _request(reader, cache_file)(models)
    assert reader.calls == [models]


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"key": 1}', b"\xff"])
def test_what_is_kept_and_cannot_be_read_is_read_anew(damage: bytes, reader: _Reader, tmp_path: Path) -> None:
    cache_file = tmp_path / "kept.json"
    cache_file.write_bytes(damage)
    assert _request(reader, cache_file)(tmp_path / "models") == reader(tmp_path / "models")


def test_without_a_place_to_keep_it_the_answer_is_the_same(
    reader: _Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    assert _request(reader, tmp_path / "file" / "kept.json")(tmp_path / "models") == reader(tmp_path / "models")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    _request(reader, tmp_path / "kept.json")(tmp_path / "models")
    assert not (tmp_path / "kept.json").exists()


def test_one_model_alone_is_none_of_its_business(reader: _Reader, tmp_path: Path) -> None:
    _request(reader, tmp_path / "kept.json")(tmp_path / "models" / "bert" / "__init__.py")
    assert reader.calls == [tmp_path / "models" / "bert" / "__init__.py"]
    assert not (tmp_path / "kept.json").exists()


@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_hidden_is_there_again_afterwards(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    finders: list[Any] = [*sys.meta_path]
    for module in (name, READER):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with lean_transformers(), pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)
    assert name not in sys.modules and sys.meta_path == finders


@pytest.mark.parametrize("name", HIDDEN)
def test_nothing_is_hidden_from_a_transformers_that_was_imported_before(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has found accelerate installed, and would fail without it."""
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, READER, sys)
    with lean_transformers():
        assert importlib.util.find_spec(name) is not None
