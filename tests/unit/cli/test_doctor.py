"""`assay doctor shapes` as a person, a program and a ladder see it."""

from pathlib import Path

import pytest
import yaml

from assay.decision.config import Candidate
from in_process import AssayAt
from method_runs import method_recipe


def written(method: str, folder: Path, **model: object) -> Path:
    path = folder / f"{method}.yaml"
    path.write_text(yaml.safe_dump(method_recipe(method, folder, **model)))
    return path


def test_a_person_sees_operators_memory_and_that_it_is_an_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    command = ("doctor", "shapes", written("sft", tmp_path), "--device", "h100", "--workers", "2")
    shown = AssayAt(tmp_path / "home")(*command).out
    for words in ("estimate: nothing was measured", "self_attn.q_proj", "sum of gradients inside nodes", "activations"):
        assert words in shown
    assert "order of these estimates was never compared with measured steps" in shown


def test_a_pass_that_waits_for_the_host_says_so(tmp_path: Path) -> None:
    found = AssayAt(tmp_path / "home").json("doctor", "shapes", written("sft", tmp_path), "--device", "h100")
    assert found["pass_parts_s"]["host"] > 0.9 * found["pass_s"] > 0
    assert "the host starts the" in found["notes"][0] and "bucketed is not captured" in found["notes"][0]


def test_candidates_are_those_of_campaigns_and_ladders(tmp_path: Path) -> None:
    path = written("sft", tmp_path, vocab_size=50_257)
    line = ("loader.layout.type=line", "loader.layout.tokens=1024")
    found = AssayAt(tmp_path / "home").json("doctor", "shapes", path, *line, "--device", "h100")
    assert not found["is_measured"] and all(advice["measured_saved"] is None for advice in found["advice"])
    candidates = [Candidate.model_validate(candidate) for candidate in found["candidates"]]
    assert {"method.model.vocab_size": 50_304} in [candidate.patch for candidate in candidates]
    assert all(len(candidate.patch) == 1 for candidate in candidates)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "h1000"), "h1000: no data sheet of it is known. Known are B200"),
        ((), "this machine has no GPU whose data sheet is known"),
        (("--device", "cpu"), "Add --measure"),
        (("--device", "cpu", "--measure", "--workers", "2"), "nothing is known of a network between CPUs"),
        (("--device", "h100", "--measure"), "whose times are not those of --device H100"),
        (("--device", "h100", "--workers", "9"), "loader.lanes=4 can be shared by 1 to 4 workers"),
        (("--device", "l40s", "--workers", "4", "--devices-per-node", "2"), "state the network between them"),
        (("--device", "h100", "--network", "fast"), "--network fast: expected bandwidth"),
    ],
)
def test_one_error_names_what_is_wrong(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.workflows.throughput.shapes.gpus_here", list)
    refused = AssayAt(tmp_path / "home")("doctor", "shapes", written("sft", tmp_path), *arguments, code=2)
    assert words in refused.err


def test_completions_that_are_sampled_have_no_shapes_before_a_run(tmp_path: Path) -> None:
    refused = AssayAt(tmp_path / "home")("doctor", "shapes", written("grpo", tmp_path), "--device", "h100", code=2)
    assert "method.type=grpo" in refused.err and "sft with the same method.model" in refused.err
