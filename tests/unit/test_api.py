"""The public Python API: few names, nothing loaded before it is used, and every name on its page."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import assay
from assay.api.commands import run_command

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()


def test_importing_assay_loads_nothing() -> None:
    script = "import sys, typing; began = {*sys.modules}; import assay; print(*sorted({*sys.modules} - began))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded == "assay\n"


def test_asking_for_runs_loads_no_torch() -> None:
    script = "import sys, assay; assay.runs(); print({'torch', 'transformers', 'scipy'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown == "set()\n"


def test_each_public_name_is_explained_and_on_the_page() -> None:
    assert len(assay.__all__) <= 20 and set(assay.__all__) <= set(dir(assay))
    for name in set(assay.__all__) - {"Curve"}:
        found = getattr(assay, name)
        assert name in PAGE and inspect.getdoc(found), name
    methods = [name for name, _ in inspect.getmembers(assay.Run, callable) if not name.startswith("_")]
    assert [name for name in methods if f".{name}(" not in PAGE or not getattr(assay.Run, name).__doc__] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        assay.trian  # noqa: B018


def test_a_home_without_runs_has_none_and_a_wrong_id_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "none"))
    assert assay.runs() == [] and not (tmp_path / "none").exists()
    with pytest.raises(assay.AssayError, match="there are no runs"):
        assay.run("first").view()
    with pytest.raises(assay.AssayError, match=r"needs a candidate: assay\.compare"):
        assay.compare("first")


@pytest.mark.timeout(60)
def test_what_a_command_prints_may_be_longer_than_a_pipe_holds() -> None:
    reference = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
    assert len(reference) > 1 << 16
    assert run_command("runs", "keys", is_json=False) == reference
