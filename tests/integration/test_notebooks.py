"""The notebooks of `examples` run from an empty folder, in their order, and show what they say."""

import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]
NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"


def shown(notebook: nbformat.NotebookNode, kind: str = "") -> str:
    """Everything that the cells showed, or only their `stream`s of text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    texts = [output.get("text") or output.get("data", {}).get("text/html", "") for output in outputs]
    return "\n".join(
        text for text, output in zip(texts, outputs, strict=True) if output["output_type"].startswith(kind)
    )


def test_notebooks_run_and_show_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASSAY_HOME", raising=False)
    seen = {}
    for name in ("train_and_resume", "compare_and_decide"):
        shutil.copy(NOTEBOOKS / f"{name}.ipynb", tmp_path)
        notebook = nbformat.read(tmp_path / f"{name}.ipynb", as_version=4)
        assert not any(cell.get("outputs") for cell in notebook.cells), "what a notebook showed once is not kept in it"
        NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
        seen[name] = shown(notebook)
        assert shown(notebook, "stream").count("\n") < 1_000, "a line for each change of a progress bar"
    assert "2 attempts and 1" in seen["train_and_resume"] and "no such key" in seen["train_and_resume"]
    assert "{'faster': '" in seen["compare_and_decide"]
    assert (tmp_path / "comparison.html").read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in (tmp_path / "runs" / "campaigns").iterdir()) == ["learning-rate"]
