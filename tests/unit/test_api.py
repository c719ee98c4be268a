"""The public Python API: few names, nothing loaded before it is used, and every name on its page."""

import inspect
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import assay
from assay.api.commands import run_command
from assay.api.report import Report
from assay.cli.wording import FEW_KEYWORDS, KEYWORDS, in_python
from assay.reporting.document import Document
from assay.reporting.views.view import View
from assay.workflows.processes.foreground import _passing_interrupts_on, flags_of

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
def test_an_error_is_raised_with_all_of_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "reviews.csv"
    file.write_text("review,stars\n" + "".join(f"text {number},{number % 2}\n" for number in range(20)))
    with pytest.raises(assay.AssayError, match=r"Run or edit this:\n\n  assay\.Dataset\.build\(.*text='review'"):
        assay.Dataset.build(file, out=tmp_path / "dataset")


@pytest.mark.timeout(60)
def test_wrong_arguments_of_train_are_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        assay.AssayError, match=r"a folder, not a recipe\..*assay\.Recipe\.new\(.*\.save\('recipe\.yaml'\)"
    ):
        assay.train(tmp_path)
    (tmp_path / "recipe.yaml").write_text("name: first\n")
    with pytest.raises(assay.AssayError, match=r"no keyword 'epochs'.*keys of a recipe are texts: 'trainer\.epochs=2'"):
        assay.train(tmp_path / "recipe.yaml", epochs=2)
    with pytest.raises(assay.AssayError, match=r"^workers=x: expected a number"):
        assay.train(tmp_path / "recipe.yaml", workers="x")
    with pytest.raises(assay.AssayError, match=r"^the recipe is not valid:\n(.*\n)*  trainer\.epoch .*no such key"):
        assay.train({"name": "first"}, "trainer.epoch=3")
    with pytest.raises(assay.AssayError, match=r"^take_over=True needs resume=RUN\."):
        assay.train(tmp_path / "recipe.yaml", take_over=True)


@pytest.mark.timeout(60)
def test_an_error_is_not_printed_besides(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for options in ({}, {"epochs": 2}):
        with pytest.raises(assay.AssayError):
            assay.train(tmp_path / "none.yaml", **options)
    assert capfd.readouterr().err == ""


@pytest.mark.timeout(60)
def test_a_file_of_the_working_directory_hides_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "click.py").write_text("raise SystemExit('the wrong click')")
    monkeypatch.chdir(tmp_path)
    assert "train" in run_command("--help", is_json=False)


def test_a_report_reads_the_same_at_the_prompt_of_python() -> None:
    report = Report(None, Document(title="first against first", kind="comparison"))
    assert repr(report) == str(report).strip() and "first against first" in repr(report)


REPORTS = """

from assay.api.report import Report
from assay.reporting.document import Document, Verdict
from assay.reporting.terminal.terminal import stdout
"""
DOCUMENT = "Report(None, Document(title='first', kind='audit', verdict=Verdict('good', 'pass', 'proved')))"
PRINTED = "Report(None, lambda: stdout().print('first  [PASS]', style='bold green'))"


@pytest.mark.timeout(120)
def test_a_notebook_shows_a_report_once_as_text_and_as_a_page() -> None:
    cells = [REPORTS, f"print({DOCUMENT})", f"print({PRINTED})", DOCUMENT, PRINTED]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, kernel_name="python3").execute()
    shown = [cell.outputs for cell in notebook.cells[1:]]
    assert [[output.output_type for output in outputs] for outputs in shown] == [["stream"]] * 2 + [
        ["execute_result"]
    ] * 2
    printed = [re.sub(r"\x1b\[[\d;]*m", "", outputs[0].text).split() for outputs in shown[:2]]
    assert printed == [["first", "PASS", "proved"], ["first", "[PASS]"]]
    document, text = (outputs[0].data["text/html"] for outputs in shown[2:])
    assert document.startswith("<iframe ") and text.startswith("<pre>") and "first  [PASS]" in text


@pytest.mark.parametrize("report", [DOCUMENT, PRINTED])
def test_a_report_has_colours_on_a_terminal_only(report: str) -> None:
    screen, terminal = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")}
    command = [sys.executable, "-c", f"{REPORTS}\nprint({report})"]
    subprocess.run(command, stdout=terminal, env={**environment, "TERM": "xterm"}, check=True)
    assert b"\x1b[1;32m" in os.read(screen, 4096)
    assert b"\x1b" not in subprocess.run(command, capture_output=True, env=environment, check=True).stdout


@pytest.mark.timeout(60)
def test_what_a_command_prints_may_be_longer_than_a_pipe_holds() -> None:
    reference = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
    assert len(reference) > 1 << 16
    assert run_command("runs", "keys", is_json=False) == reference


def test_a_keyword_becomes_the_option_that_it_names() -> None:
    assert flags_of({"max_restarts": 0, "store": None, "other_device": True, "take_over": False}) == [
        "--max-restarts=0",
        "--other-device",
    ]
    assert flags_of({"metadata": ["a", "b"], "requeue": False}) == ["--metadata=a", "--metadata=b", "--no-requeue"]


@pytest.mark.parametrize(
    ("printed", "python"),
    [
        ("Use 'assay train --resume a --workers 2'.", "Use assay.run('a').resume(workers=2)."),
        ("  assay train --from a@15 trainer.epochs=2", "  assay.run('a').fork('trainer.epochs=2', step=15)"),
        ("'assay train --from a KEY=VALUE' trains on", "assay.run('a').fork('KEY=VALUE') trains on"),
        ("next: assay train new d --out r.yaml", "next: assay.Recipe.new('d').save('r.yaml')"),
        ("'assay train r.yaml --check' measures it", "assay.train('r.yaml', check=True) measures it"),
        ("'assay decide again small' repeats it", "assay.Campaign('small').decide_again() repeats it"),
        ("run 'assay serve' first", "run 'assay serve' first"),
        ("'assay runs delete a' frees them", "'assay runs delete a' frees them"),
        ("--workers x: a number", "workers=x: a number"),
        ("--on background, or --other-device", "on='background', or other_device=True"),
        ("needs --on kubernetes or --on ray.", "needs on='kubernetes' or on='ray'."),
        ("Add '--on background'.", "Add on='background'."),
        ("--workers 8..64: a range", "workers=8..64: a range"),
        ("an option of sbatch: --gpus-per-gnome=8", "an option of sbatch: --gpus-per-gnome=8"),
        ("No such option '--wokers'.", f"There is no keyword 'wokers'. {KEYWORDS}"),
    ],
)
def test_a_sentence_of_a_command_is_worded_for_python(printed: str, python: str) -> None:
    assert in_python(printed, ("train", "recipe.yaml")) == python


def test_a_call_in_a_sentence_has_only_keywords_that_it_takes() -> None:
    for call, keywords in FEW_KEYWORDS.items():
        found = assay.Run if call.startswith("run({})") else assay
        for name in call.removeprefix("run({}).").split("."):
            found = getattr(found, name)
        assert {*keywords} <= {*inspect.signature(found).parameters}, call
    for command in ("assay runs replay a --step 3 --explain", "assay runs show a --json"):
        assert in_python(f"see '{command}'", ()) == f"see '{command}'"
    assert in_python("'assay train --resume 0411'", ()) == "assay.run('0411').resume()", "an id is no number"
    assert in_python("'assay decide compare a b --allowed-loss 0.5'", ()) == "assay.compare('a', 'b', allowed_loss=0.5)"


def test_what_is_raised_and_reported_in_this_process_is_worded_for_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    with pytest.raises(assay.AssayError, match=r"assay\.runs\(\)|there are no runs") as wrong:
        assay.run("first")
    assert "'assay " not in str(wrong.value)
    report = Report(
        None, lambda: print("one (--deep reads it); 'assay train --resume a' goes on"), of=("runs", "audit")
    )
    assert str(report) == "one (deep=True reads it); assay.run('a').resume() goes on\n"


def test_what_is_no_path_and_no_override_is_refused_in_a_sentence(tmp_path: Path) -> None:
    values = {"name": "first"}
    (tmp_path / "recipe.yaml").write_text("name: first\n")
    for refused in (
        lambda: assay.Recipe(values, {"trainer.epochs": 2}),
        lambda: assay.train(tmp_path / "recipe.yaml", {"trainer.epochs": 2}),
    ):
        with pytest.raises(assay.AssayError, match=r"texts such as 'trainer\.epochs=2'; found a dict"):
            refused()
    with pytest.raises(assay.AssayError, match="decide: expected a path, found a dict"):
        assay.decide(values)
    with pytest.raises(assay.AssayError, match="Recipe: expected a path, found a list"):
        assay.Recipe([values])


def test_a_wrong_override_is_called_one() -> None:
    values = {"name": "first", "data": {"dataset": "d", "split": {"type": "hash"}}, "method": {"type": "sft"}}
    with pytest.raises(assay.AssayError, match=r"trainer\.learning_rate \(override\): no such key"):
        assay.Recipe(values, "trainer.learning_rate=1")


def test_a_notebook_shows_a_recipe_and_no_long_views(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    values = {"name": "<first>", "data": {"dataset": "d", "split": {"type": "hash"}}, "loader": {}}
    encoder = {"type": "new", "vocab_size": 99, "hidden_size": 16}
    recipe = assay.Recipe(values | {"method": {"encoder": encoder}})
    assert recipe._repr_html_().startswith("<pre>name: &lt;first&gt;\n")
    assert repr(assay.runs()) == "no runs" and assay.runs() == []
    view = WideView(inner=WideView(inner=None, values=()), values=(1,) * 1_000)
    assert repr(view) == "WideView(inner=<WideView>, values=<1000 values>)"


class WideView(View):
    """A view of many values."""

    inner: "WideView | None"
    values: tuple[int, ...]


def test_a_path_that_the_system_refuses_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for refused in (
        lambda: assay.Recipe("name: first\n" * 100),
        lambda: assay.Dataset("d" * 400),
        lambda: assay.Recipe(tmp_path / "file" / "recipe.yaml"),
    ):
        with pytest.raises(assay.AssayError, match="Check the path and its permissions"):
            refused()


def test_ctrl_c_while_a_command_ends_raises_nothing_else() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], text=True, process_group=0) as process:
        os.waitpid(process.pid, 0)  # as `Popen.wait` does before it sets the return code
        with _passing_interrupts_on(process) as interrupts:
            signal.raise_signal(signal.SIGINT)
        assert interrupts == [signal.SIGINT] and process.returncode is None
