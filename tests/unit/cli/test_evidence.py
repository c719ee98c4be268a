"""`assay decide power` and `proxy` as a person and a program see it."""

import json
from pathlib import Path

import numpy as np
import pytest

from in_process import assay as call


@pytest.fixture
def runs_csv(tmp_path: Path) -> Path:
    """Twelve recipes at three scales, the smallest one noise; one recipe is missing at the largest."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=12)
    lines = ["scale,recipe,seed,score"]
    for scale, noise in ((1e7, 9.0), (1e8, 0.01), (1e9, 0.01)):
        for recipe, seed in np.ndindex(12, 2):
            lines.append(f"{scale},r{recipe},{seed},{truth[recipe] + noise * rng.normal()}")
    lines.append("1e8,lonely,0,1.0")
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines))
    return path


def test_power_names_the_seeds_that_a_gain_needs(capsys):
    assert call("decide", "power", "--items", "8000", "--effect", "0.02") == 0
    assert "7 seed pairs find 0.02 on 8,000 items 80% of the time." in capsys.readouterr().out


def test_power_says_when_only_items_can_help(capsys):
    assert call("decide", "power", "--items", "2000", "--effect", "0.02") == 0
    assert "No number of seeds finds 0.02 on 2,000 items" in capsys.readouterr().out


def test_power_without_a_wanted_gain_is_a_table(capsys):
    assert call("decide", "power", "--items", "8000", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    effects = [item["detectable_effect"] for item in found["designs"]]
    assert effects == sorted(effects, reverse=True)
    assert found["seeds_needed"] is None


def test_a_gain_above_the_discordance_is_impossible_and_refused(capsys):
    assert call("decide", "power", "--items", "8000", "--effect", "0.9") == 2
    assert "0.9 is above the discordance of 0.2" in capsys.readouterr().err
    assert call("decide", "power", "--items", "8000", "--effect", "0.2") == 0


@pytest.mark.parametrize("effect", ["1", "2"])
def test_a_gain_in_points_is_refused_as_no_share(effect, capsys):
    assert call("decide", "power", "--items", "312", "--effect", effect) == 2
    output = " ".join(capsys.readouterr().err.split())
    assert f"give a share, e.g. 0.02 for 2 points; perhaps you meant 0.0{effect}." in output


def test_too_few_items_for_any_difference_are_called_so(capsys):
    assert call("decide", "power", "--items", "10", "--discordance", "0.05") == 0
    assert "too few items for any difference" in capsys.readouterr().out


def test_the_smallest_scale_that_tells_the_truth_is_named(runs_csv, capsys):
    assert call("decide", "proxy", str(runs_csv)) == 0
    output = capsys.readouterr().out
    assert "Scale 1e8 is the smallest that reliably orders 80% of the pairs." in output
    assert "left out, not at every scale: lonely" in output


def test_where_no_scale_is_good_enough_none_is_named(runs_csv, capsys):
    text = "\n".join(line for line in runs_csv.read_text().splitlines() if "100000000.0" not in line)
    runs_csv.write_text(text.replace("1e8,lonely,0,1.0", ""))
    assert call("decide", "proxy", str(runs_csv), "--json") == 0
    assert json.loads(capsys.readouterr().out)["recommended_scale"] is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("scale,recipe,seed\n", "no column score"),
        ("scale,recipe,seed,score\n1e7,a,0,high\n", "line 2: could not convert string to float: 'high'"),
        (
            "scale,recipe,seed,score\n1e7,a,0,1\n1e7,a,0,2\n",
            "recipe 'a' at scale 1e+07 has two scores for seed 0",
        ),
        ("scale,recipe,seed,score\n1e7,a,0,1\n1e8,b,0,1\n", "no recipe was run at all 2 scales"),
        ("scale,recipe,score\n1e7,a,nan\n", "finite score"),
        ("scale,recipe,score\n", "needs runs at two scales"),
        (
            "scale,recipe,score\n"
            + "".join(f"{n},{r},1e{300 * n}\n" for n in (1, 2) for r in "abcd").replace("600", "3"),
            "scale 1: a score is beyond 1e+100",
        ),
    ],
)
def test_a_file_that_can_not_be_used_is_named_with_its_fault(text, words, tmp_path, capsys):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    assert call("decide", "proxy", str(path)) == 2
    assert words in capsys.readouterr().err


def test_a_saturated_benchmark_is_called_so(tmp_path, capfd):
    lines = [f"{scale},r{recipe},{seed},1.0" for scale in (1e7, 1e9) for recipe in range(8) for seed in range(3)]
    (tmp_path / "t.csv").write_text("\n".join(["scale,recipe,seed,score", *lines]))
    assert call("decide", "proxy", str(tmp_path / "t.csv")) == 0
    out = capfd.readouterr().out
    assert "All recipes tie, so no scale can be judged: the benchmark is saturated" in out
    assert "[0.50, 0.50]" not in out
