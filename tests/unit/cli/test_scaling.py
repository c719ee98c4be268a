"""`assay scaling` as a person and a program see it."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from in_process import assay as call

LEAST = ("--form", "tokens", "--resamples", "100")


@pytest.fixture
def runs_csv(tmp_path: Path) -> Path:
    """One model on 16 amounts of data; a task that follows its loss."""
    rng = np.random.default_rng(0)
    tokens = np.geomspace(1e6, 1e9, 16)
    loss = (0.5 + 30 * tokens**-0.2) * np.exp(rng.normal(0, 0.005, 16))
    score = 1 / (1 + np.exp(3 * (loss - 1.2)))
    lines = ["tokens,loss,task", *(f"{t},{item},{s}" for t, item, s in zip(tokens, loss, score, strict=True))]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines))
    return path


def test_a_law_is_fitted_and_a_larger_run_predicted(runs_csv, tmp_path, capsys):
    page = tmp_path / "page.html"
    options = ("--predict", "tokens=3e9", "--score", "task", "--out", str(page))
    assert call("scaling", "fit", str(runs_csv), *LEAST, *options) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "L = B/D^beta + E" in output
    assert re.search(r"90% band [\d.]+ to [\d.]+: known to \d+\.\d%\.", output)
    assert "At tokens 3.0 G the loss will be 0.8" in output
    assert "The score will be 0." in output
    assert "3 times beyond the largest run" in output
    assert "Loss over scale" in page.read_text()


@pytest.mark.parametrize(
    ("name", "within"),
    [
        pytest.param("redpajama", (0.02, 0.005, 0.005), marks=pytest.mark.slow),
        pytest.param("c4", (0.02, 0.02, 0.06), marks=pytest.mark.slow),
        pytest.param("refinedweb", (0.02,) * 3, marks=pytest.mark.slow),
    ],
)
def test_published_ladders_are_forecast_from_their_points_alone(published_data, capsys, name, within):
    """Gadre et al. 2024: runs of 1.4 and 6.9 B parameters from those of 10 to 411 M. The two that they forecast
    themselves are RedPajama's last two. C4's last is 5.2% off, and is said to be known to no better."""
    folder = published_data / "ladders"
    with (folder / f"{name}_largest.csv").open() as file:
        larger = list(csv.DictReader(file))
    targets = [f"--predict=parameters={entry['parameters']},tokens={entry['tokens']}" for entry in larger]
    command = ("scaling", "fit", str(folder / f"{name}.csv"), *targets, "--resamples", "200", "--json")
    assert call(*command) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    for item, target, allowed in zip(larger, found, within, strict=True):
        loss, expected = float(item["loss"]), target["prediction"]["loss"]
        assert abs(expected["value"] / loss - 1) < allowed
        assert expected["low"] < loss < expected["high"]
    last = found[-1]["prediction"]["loss"]
    assert (max(last["high"] / last["value"] - 1, 1 - last["low"] / last["value"]) > 0.052) == (name == "c4")


@pytest.mark.slow
def test_a_score_whose_chance_was_left_out_stays_open_and_says_so(tmp_path, capsys):
    tokens = np.geomspace(1e6, 1e10, 20)
    loss = 0.5 + 30 * tokens**-0.2
    score = 0.25 + 0.75 / (1 + np.exp(6 * (loss - 0.9)))
    file = tmp_path / "runs.csv"
    file.write_text(
        "\n".join(["tokens,loss,task", *map("{},{},{}".format, tokens.tolist(), loss.tolist(), score.tolist())])
    )
    request = ("scaling", "fit", str(file), *LEAST, "--predict", "tokens=3e10", "--score", "task")
    assert call(*request, "--json") == 0
    assert json.loads(capsys.readouterr().out)["score_level"] == pytest.approx(0.25, abs=0.01)
    assert call(*request) == 0
    assert "say what guessing scores, '--chance 0.25' perhaps" in capsys.readouterr().out
    assert call(*request, "--chance", "0.25") == 0
    assert "guessing" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_refused_target_comes_after_what_can_be_said_and_exits_with_2(runs_csv, capsys):
    targets = ("--predict", "tokens=3e9", "--predict", "tokens=1e20", "--predict", "tokens=1e3")
    assert call("scaling", "fit", str(runs_csv), *LEAST, *targets, "--strict", "--json") == 2
    out, err = capsys.readouterr()
    granted, refused, too_small = json.loads(out)["predictions"]
    assert too_small["error"] in err and "below the smallest run" in err
    assert granted["prediction"]["loss"]["low"] < granted["prediction"]["loss"]["value"]
    assert refused["prediction"] is None
    assert "A back-test on these points can check predictions up to" in refused["error"]
    assert refused["error"] in err


@pytest.mark.slow
def test_a_target_beyond_what_was_tested_is_predicted_and_marked(runs_csv, capsys):
    assert call("scaling", "fit", str(runs_csv), *LEAST, "--predict", "tokens=1e20") == 0
    assert "Untested: it is 1e11 times beyond the largest run" in capsys.readouterr().out
    assert call("scaling", "fit", str(runs_csv), *LEAST, "--predict", "tokens=1e20", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    assert found["is_untested"] and found["error"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--predict", "tokens"), "'tokens' is not parameters or tokens or compute=NUMBER"),
        (("--predict", "loss=3"), "'loss=3' is not parameters"),
        (("--predict", "tokens=-1"), "expected a positive number"),
        (
            ("--predict", "tokens=1e300"),
            "target: tokens=1e+300; expected between 1e-100 and 1e+100. Check the unit.",
        ),
        (("--score", "arc"), "no column 'arc'"),
        (("--drop-highest", "12"), "4 points for the 3 parameters of 'tokens'"),
        (("--form", "chinchilla"), "have no parameters"),
    ],
)
def test_what_is_asked_wrongly_is_said_without_a_traceback(runs_csv, capsys, arguments, message):
    assert call("scaling", "fit", str(runs_csv), *LEAST, *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_page_that_cannot_be_written_is_said_without_a_traceback(runs_csv, capsys):
    assert call("scaling", "fit", str(runs_csv), *LEAST, "--out", str(runs_csv / "page.html")) == 1
    assert "page.html: cannot be written" in capsys.readouterr().err


def test_an_odd_number_of_runs_makes_no_pairs(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    for run_id in "abc":
        (tmp_path / run_id).mkdir()
        (tmp_path / run_id / "run.json").touch()
    assert call("scaling", "code-length", "a", "b", "c") == 2
    assert "3 runs are not pairs" in capsys.readouterr().err
