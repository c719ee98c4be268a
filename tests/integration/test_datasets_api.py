"""A user builds, indexes and opens datasets with `import assay`."""

from pathlib import Path

import pytest

import assay
from assay.api.commands import run_command


def test_a_dataset_is_built_indexed_again_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "text,lang,part\n" + "".join(f"row number {row} & more,{'en' if row % 2 else 'de'},a\n" for row in range(40))
    Path("rows.csv").write_text(rows)
    options = {"format": "text", "tokenizer": "new:300", "metadata": ["lang", "part"]}
    built = assay.Dataset.build("rows.csv", out="datasets/mine", **options)
    assert len(built) == 40 and {"lang", "part"} <= set(built.manifest.columns)
    indexed = assay.Dataset.index("datasets/mine/shards", "other", no_label=True)
    named = assay.Dataset("mine")
    assert named.fingerprint == built.fingerprint == indexed.fingerprint
    assert repr(named) == "Dataset('datasets/mine')"
    assert "40 rows" in str(named) and named._repr_html_().startswith("<pre>")
    # A kernel of Jupyter asks for colours, which a bar of progress would take for a terminal.
    monkeypatch.setenv("FORCE_COLOR", "1")
    printed = run_command("data", "show", "datasets/mine", is_json=False)
    assert "40 rows" in printed and "\x1b" not in printed and "\x1b" not in named._repr_html_()


def test_wrong_input_is_said_as_the_commands_say_it(tmp_path: Path) -> None:
    with pytest.raises(assay.AssayError, match="no dataset there"):
        assay.Dataset(tmp_path / "none")
    with pytest.raises(assay.AssayError, match="no dataset there"):
        assay.Dataset("none")
    with pytest.raises(assay.AssayError, match="build needs a source"):
        assay.Dataset.build(out=tmp_path / "none")
    with pytest.raises(assay.AssayError, match="There is no keyword 'jbs'"):
        assay.Dataset.index(tmp_path, tmp_path / "none", jbs=3)
