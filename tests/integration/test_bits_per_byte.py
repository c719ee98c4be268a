"""Two checkpoints on this repository's own source after training on other packages, from the command line.

A small GPT is trained for some seconds on the source of installed packages; its checkpoints are saved as any
tool would. The held-out text is this repository's: it cannot have leaked, and a leak that is planted is found.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from assay.data.dataset.tokens import train_tokenizer
from assay.statistics.benchmark_items import read_score_matrix, result_folders
from in_process import assay as run
from tiny_causal import new_causal_network, save_causal

ROOT = Path(__file__).parents[2]
WINDOW = 64
SUITE = """
name: own-code
benchmarks:
  - {{type: bits_per_byte, name: own-source, files: ["base/*.py"], failure_modes: [forgets code]}}
"""


def package_sources(*names: str) -> list[str]:
    folders = [Path(importlib.util.find_spec(name).submodule_search_locations[0]) for name in names]
    return [path.read_text() for folder in folders for path in sorted(folder.glob("*.py"))]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Step -> folder: before training, and after 120 steps."""
    folder = tmp_path_factory.mktemp("gpt")
    texts = package_sources("click", "yaml")
    tokenizer = train_tokenizer(texts[:12], vocab_size=512)
    encoded = [[1, *tokenizer.encode(text, add_special_tokens=False).ids] for text in texts]
    tokens = torch.tensor([token for ids in encoded for token in ids])
    torch.manual_seed(0)
    network = new_causal_network(vocab_size=512, hidden_size=48, num_layers=1, num_heads=2, max_tokens=WINDOW)
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    rng = np.random.default_rng(0)
    saved = {}
    for step in range(121):
        if step in (0, 120):
            saved[step] = folder / f"step-{step}"
            save_causal(saved[step], network, tokenizer)
        starts = rng.integers(0, len(tokens) - WINDOW, 16)
        batch = torch.stack([tokens[start : start + WINDOW] for start in starts])
        logits = network(input_ids=batch).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return saved


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The suite beside this repository's own source."""
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    (tmp_path / "base").symlink_to(ROOT / "src" / "assay" / "base")
    (tmp_path / "suite.yaml").write_text(SUITE.format())
    return tmp_path / "suite.yaml"


def evaluated(capfd, *arguments: object) -> dict:
    capfd.readouterr()
    assert run("eval", "run", *arguments, "--json") == 0
    (line,) = capfd.readouterr().out.splitlines()
    return json.loads(line)


@pytest.mark.slow
def test_training_on_other_packages_saves_bits_on_our_own_source(checkpoints, suite, tmp_path, capfd):
    trained_on = Path(importlib.util.find_spec("click").submodule_search_locations[0])
    found = {
        step: evaluated(capfd, folder, "--suite", suite, "--run-id", "gpt", "--step", step, "--trained-on", trained_on)
        for step, folder in checkpoints.items()
    }
    before, after = found[0]["score"], found[120]["score"]
    assert after["high"] < before["low"], (before, after)
    assert found[0]["weights_digest"] != found[120]["weights_digest"]
    leak = found[120]["contamination"]
    assert leak["num_ngrams"] > 1000
    assert leak["num_found"] / leak["num_ngrams"] < 0.01
    matrix = read_score_matrix(result_folders(tmp_path / "home" / "gpt"))
    assert ((matrix.scores[1] - matrix.scores[0]) < 0).mean() > 0.95

    capfd.readouterr()
    assert run("eval", "history", "gpt") == 0
    shown = capfd.readouterr().out
    assert "own-source  (bits per byte; less is better" in shown
    assert shown.count("yes") == 2

    (tmp_path / "coverage.yaml").write_text(
        "failure_modes: [{name: forgets code, owner: research, least_effect: 1.0},"
        " {name: leaks secrets, owner: policy, least_effect: 0.02}]"
    )
    assert run("eval", "coverage", tmp_path / "coverage.yaml", "--suite", suite) == 1
    shown = capfd.readouterr().out
    assert "leaks secrets: no benchmark looks for it; policy owns it" in shown
    assert "1 of 2 failure modes would be noticed" in shown


@pytest.mark.slow
def test_a_planted_leak_is_found_and_the_score_without_it_is_given(checkpoints, suite, tmp_path, capfd):
    leaked = tmp_path / "training"
    leaked.mkdir()
    (leaked / "corpus.txt").write_text((ROOT / "src" / "assay" / "base" / "seeds.py").read_text().upper())
    result = evaluated(capfd, checkpoints[120], "--suite", suite, "--run-id", "leaky", "--trained-on", leaked)
    leak = result["contamination"]
    assert leak["num_items_found"] >= 2
    assert {name.partition("#")[0] for name in leak["items_found"]} == {"base/seeds.py"}
    assert leak["score_without"] != result["score"]["value"]


@pytest.mark.slow
def test_what_was_scored_before_is_not_scored_again(checkpoints, suite, tmp_path, capfd):
    first = evaluated(capfd, checkpoints[0], "--suite", suite, "--run-id", "again")
    second = evaluated(capfd, checkpoints[0], "--suite", suite, "--run-id", "again")
    assert first == second
    text = ROOT / "src" / "assay" / "base" / "units.py"
    searched = evaluated(capfd, checkpoints[0], "--suite", suite, "--run-id", "again", "--trained-on", text)
    assert searched["contamination"]["num_items_found"] >= 1
    assert {**searched, "contamination": None} == first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{model}", "--suite", "missing.yaml"], "missing.yaml: no such file"),
        (["nowhere", "--suite", "{suite}"], "it has no config.json"),
        (["{model}", "--suite", "{suite}", "--judge-model", "x"], "--judge-model needs --judge"),
        (["m", "--endpoint", "http://x/v1", "--suite", "{suite}"], "which an endpoint cannot answer"),
    ],
)
def test_what_can_not_be_evaluated_is_one_clear_error(checkpoints, suite, capfd, arguments, message):
    filled = [text.format(model=checkpoints[0], suite=suite) for text in arguments]
    assert run("eval", "run", *filled) == 2
    shown = capfd.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
