"""What a command writes replaces nothing of a user's, unless --force says so."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from assay.cli.main import cli, main
from assay.cli.parameters import FOLDER, OUT_FILE, OUT_PAGE, OutFile, force_option

OWN_NAMES = {"assay plan offer", "assay demo", "assay train import"}
"""A folder of documents, whose names are the command's own: they are renewed, or the folder must be new."""


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield f"{path} {name}", command
            if isinstance(command, click.Group):
                yield from commands(command, f"{path} {name}")


def test_every_command_that_writes_what_a_user_names_takes_force() -> None:
    writers = {}
    for name, command in commands(cli, "assay"):
        options = {option.name: option for option in command.params}
        outs = [options[text] for text in ("out", "to", "page") if text in options]
        if any(isinstance(out.type, click.Path) for out in outs) and name not in OWN_NAMES:
            writers[name] = "force" in options
            assert all(isinstance(out.type, OutFile) or out.type is FOLDER for out in outs), name
    assert len(writers) > 12
    assert all(writers.values()), [name for name, takes_force in writers.items() if not takes_force]


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (OUT_FILE, None),
        (OUT_PAGE, "<title>first · assay</title>"),
        (OutFile('"kind":"plan"'), '{"kind":"plan","version":1}'),
    ],
)
def test_a_file_is_replaced_by_force_or_where_it_is_of_the_same_form(
    kind: OutFile, own: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    @click.option("--out", type=kind)
    @force_option
    def write(out: Path) -> None:
        click.echo(f"writes {out}")

    def is_written(*words: str) -> bool:
        with pytest.raises((SystemExit, Exception)) as ended:
            write.main(["--out", str(path), *words])
        is_refused = not isinstance(ended.value, SystemExit)
        assert not is_refused or str(ended.value).startswith(f"{path}: exists already")
        return not is_refused

    path = tmp_path / "file"
    assert is_written()
    for text in ("mine", '{"kind":"drill_report"}', "<title>mine</title>"):
        path.write_text(text)
        assert not is_written()
        assert is_written("--force")
    for harmless in ("", own or ""):
        path.write_text(harmless)
        assert is_written()


def test_rows_and_recipes_are_replaced_by_force_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    rows, out = tmp_path / "rows.csv", tmp_path / "out"
    build = ["data", "build", str(rows), "--format", "text", "--tokenizer", "new:300"]

    def built(*words: str) -> int:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*build, "--out", str(out), *words])
        return int(ended.value.code or 0)

    def texts(count: int) -> str:
        return "text\n" + "".join(f"number {row}\n" for row in range(count))

    rows.write_text(texts(40))
    assert built() == 0 == built(), "the same rows are found, not replaced"
    before = (out / "manifest.json").read_bytes()
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("mine")
    for words in ((), ("--force",)):
        with pytest.raises(SystemExit) as ended:
            main(["train", "new", str(out), "--out", str(recipe), *words])
        assert ended.value.code == (0 if words else 2), capfd.readouterr().err
        assert (recipe.read_text() == "mine") is (not words)
    rows.write_text(texts(50))
    assert built() == 2
    assert f"{out}: holds a dataset of other rows. Choose another --out, or add --force" in capfd.readouterr().err
    assert (out / "manifest.json").read_bytes() == before
    assert built("--force") == 0
    assert (out / "manifest.json").read_bytes() != before


def test_a_model_beside_which_nothing_was_built_keeps_its_tokenizer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text("text\n" + "".join(f"number {row}\n" for row in range(40)))
    (tmp_path / "tokenizer.json").write_text("of a model")
    build = ["data", "build", str(tmp_path / "rows.csv"), "--text", "text", "--no-label"]
    with pytest.raises(SystemExit) as ended:
        main([*build, "--tokenizer", "new:300", "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert "holds other files" in capfd.readouterr().err
    assert (tmp_path / "tokenizer.json").read_text() == "of a model"
