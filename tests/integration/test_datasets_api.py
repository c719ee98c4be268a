"""A user builds, indexes and opens datasets with `import assay`."""

import re
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


TICKETS = "text,label\n" + "".join(f"ticket {row % 30} about {'billing' * 3},{row % 3 > 0:d}\n" for row in range(60))


def test_what_a_build_changed_is_said_in_python_as_by_the_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tickets.csv"
    file.write_text(f"{TICKETS},1\n,0\n")
    options = {"tokenizer": "new:1000", "max_tokens": 4, "text": "text", "label": "label"}
    assay.Dataset.build(file, out=tmp_path / "in python", **options)
    printed_report = capfd.readouterr().err
    assert "left out 2 rows without text (the first: " in printed_report and "read 62 rows, kept 60" in printed_report
    assert "doubled: 30 rows whose text an earlier row has (drop='doubled')" in printed_report
    assert re.search(r"the new tokenizer has \d+ tokens, not 1,000", printed_report)
    assert f"\nnext: assay.Recipe.new('{tmp_path}/in python').save('recipe.yaml')\n" in printed_report
    assert "--" not in printed_report
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    printed = run_command("data", "build", str(file), f"--out={tmp_path / 'by command'}", *flags, is_json=False)
    for line in printed_report.partition("read 62")[2].splitlines()[1:]:
        assert "drop=" in line or "next:" in line or "max_tokens" in line or line in printed


def test_a_build_that_lacks_a_keyword_proposes_the_call(tmp_path: Path) -> None:
    file = tmp_path / "tickets.csv"
    file.write_text(TICKETS)
    with pytest.raises(assay.AssayError) as wrong:
        assay.Dataset.build(file, text="text", label="label", out=tmp_path / "dataset", max_tokens=32)
    call = f"assay.Dataset.build('{file}', text='text', label='label', tokenizer='new:2000', max_tokens=32, out="
    assert str(wrong.value).startswith("tokenizer: not given, and there is no terminal")
    assert call in str(wrong.value) and "--" not in str(wrong.value)


def test_rows_in_memory_are_refused_in_a_sentence(tmp_path: Path) -> None:
    frame = {"text": ["a"] * 10_000}
    for refused in (
        lambda: assay.Dataset.build(frame, out=tmp_path / "none"),
        lambda: assay.Dataset.index(frame, tmp_path / "none"),
        lambda: assay.Dataset(frame),
    ):
        with pytest.raises(assay.AssayError, match="expected a path, found a dict") as wrong:
            refused()
        assert len(str(wrong.value)) < 200
