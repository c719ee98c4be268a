"""One value says where everything lies; the environment is only one way to make it."""

from pathlib import Path

import pytest

from assay.base.errors import ConfigError
from assay.store.home import Home


def test_looking_for_a_ledger_makes_none(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    assert home.find_ledger() is None
    assert not (tmp_path / "home").exists()
    home.open_ledger().close()
    assert (tmp_path / "home" / "ledger.db").exists()
    assert home.find_ledger() is not None


def test_without_variables_it_is_the_folder_runs() -> None:
    home = Home.from_environment({})
    assert home.folder == Path("runs")
    assert home.ledger_file() == Path.cwd() / "runs" / "ledger.db"


def test_the_variables_name_another_folder_and_another_ledger(tmp_path: Path) -> None:
    home = Home.from_environment({"ASSAY_HOME": str(tmp_path), "ASSAY_LEDGER": "postgresql://me:pw@host/db"})
    assert home.run_dir("a-run") == tmp_path / "a-run"
    assert home.ledger_file() is None
    assert home.ledger == "postgresql://me:pw@host/db"


@pytest.mark.parametrize("ledger", [None, "postgresql://me:p%40ss@host/db"])
def test_another_process_elsewhere_finds_the_same_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ledger: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    ours = Home.at(Path("relative"), ledger)
    variables = ours.environment()
    monkeypatch.chdir("/")
    expected = Home.from_environment(variables)
    assert expected.folder == tmp_path / "relative"
    assert expected.ledger == ours.ledger


@pytest.mark.parametrize("name", ["../x", "/etc", "..", "", "a\nb", "campaigns"])
def test_a_run_is_never_looked_for_or_made_outside_of_its_home(tmp_path: Path, name: str) -> None:
    home = Home.at(tmp_path / "home")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "run.json").write_text("{}")
    for use in (home.run_dir, home.store_of, home.has_run, home.run):
        with pytest.raises(ConfigError, match=r"is not a valid name|is the folder of all campaigns"):
            use(name)


@pytest.mark.parametrize("name", [3, None, ["a", "b"]])
def test_what_is_no_text_names_no_run_and_no_campaign(tmp_path: Path, name: object) -> None:
    home = Home.at(tmp_path / "home")
    with pytest.raises(ConfigError, match=r"expected the id of a run, or its beginning; found "):
        home.meant_run(name)
    for use in (home.run_dir, home.campaign_dir):
        with pytest.raises(ConfigError, match="is not a valid name: it must be a text"):
            use(name)


def test_two_homes_at_once_do_not_know_each_other(tmp_path: Path) -> None:
    one, other = Home.at(tmp_path / "one"), Home.at(tmp_path / "other")
    one.store_of("r").put("run.json", b"{}")
    assert one.has_run("r")
    assert not other.has_run("r")
    with pytest.raises(ConfigError, match=r"other/r/run\.json: no such run"):
        other.run("r")
