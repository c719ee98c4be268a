"""What a reference says of pairs is written down once, names whose words they are, and trains as the reference
itself does."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.tiny_models import save_tiny
from assay.base.config import LoadedConfig
from assay.data.dataset.dataset import Dataset
from assay.evals.commit_model import load_committed
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.reference_model import ReferenceModel
from assay.workflows.run import create_run
from in_process import assay as run
from language_rows import language_dataset
from one_rank import train_one_rank
from preference_rows import preference_dataset, preference_recipe


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return preference_dataset(tmp_path / "pairs", num_rows=96)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_tiny(LlamaForCausalLM, tmp_path / "base", seed=3)


def dpo_recipe(dataset: Path, base: Path, **method: Any) -> dict[str, Any]:
    model = {"type": "pretrained", "path": str(base)}
    return preference_recipe(dataset, {"type": "dpo", "model": model, **method}, trainer={"max_steps": 4})


def recipe_file(tree: dict[str, Any], folder: Path) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def test_dpo_from_the_columns_is_dpo_from_the_frozen_model(pairs: Path, base: Path, tmp_path: Path) -> None:
    assert run("data", "score", pairs, "--reference", base, "--out", tmp_path / "scored") == 0
    by_columns, by_asking = (
        train_one_rank(dpo_recipe(tmp_path / "scored", base, reference=reference), tmp_path / reference["type"])
        for reference in ({"type": "columns"}, {"type": "frozen"})
    )
    assert by_columns.steps[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    for one, other in zip(by_columns.steps, by_asking.steps, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-6)
        assert one["chosen_reward"] == pytest.approx(other["chosen_reward"], abs=1e-5)


def test_rows_stay_as_they_were_and_the_manifest_names_whose_words_they_have(
    pairs: Path, base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scored = tmp_path / "scored"
    assert run("data", "score", pairs, "--reference", base, "--out", scored, "--tokens-at-once", 1) == 0
    assert f"with logprobs of {base} (weights " in capfd.readouterr().out.replace("\n", "")
    before, after = Dataset.open(pairs), Dataset.open(scored)
    assert after.manifest.scored is not None
    assert after.manifest.scored.source_fingerprint == before.fingerprint
    rows = [
        [row for group in range(len(data.groups)) for row in data.read_row_group(group, names).to_pylist()]
        for data, names in ((before, [*before.manifest.columns]), (after, [*after.manifest.columns]))
    ]
    output = [[row.pop(name) for name in ("ref_chosen_logps", "ref_rejected_logps")] for row in rows[1]]
    assert rows[0] == rows[1] and all(chosen < 0 and rejected < 0 for chosen, rejected in output)
    digest = after.manifest.scored.weights_digest
    assert digest == ReferenceModel.from_folder(str(base)).digest
    # As many at a time as there is room for: the same, to round-off.
    assert run("data", "score", pairs, "--reference", base, "--out", tmp_path / "again") == 0
    again = Dataset.open(tmp_path / "again").read_row_group(0, ["ref_chosen_logps"]).column(0).to_pylist()
    assert again == pytest.approx([chosen for chosen, _ in output[: len(again)]], abs=1e-4)


def test_a_scoring_that_was_cut_short_goes_on_with_what_is_missing(
    pairs: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored, command = tmp_path / "scored", ("data", "score", pairs, "--reference", base, "--out")
    request: list[int] = []
    of_pairs = ReferenceModel.of_pairs

    def until_it_dies(self: ReferenceModel, rows: Any, *, tokens_at_once: int) -> Any:
        request.append(len(rows))
        if len(request) == 5:
            raise KeyboardInterrupt
        return of_pairs(self, rows, tokens_at_once=tokens_at_once)

    monkeypatch.setattr(ReferenceModel, "of_pairs", until_it_dies)
    assert run(*command, scored) != 0
    assert not (scored / "manifest.json").exists() and len(list((scored / "shards").glob("*.parquet"))) == 2
    num_requests = len(request)
    assert run(*command, scored) == 0
    assert len(request) - num_requests == 2, "the third shard's row groups only"
    assert run(*command, tmp_path / "whole") == 0
    assert Dataset.open(scored).fingerprint == Dataset.open(tmp_path / "whole").fingerprint


def other_weights(base: Path, tmp_path: Path) -> Path:
    other = shutil.copytree(base, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    weights["lm_head.weight"][3, 3] += 1
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    return other


def test_scores_that_a_run_learned_from_are_not_written_over(
    pairs: Path, base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As many pairs at once have other last bits, and so are another dataset."""
    scored = tmp_path / "scored"
    command = ("data", "score", pairs, "--reference", base, "--out", scored)
    assert run(*command) == 0
    recipe = LoadedConfig(dpo_recipe(scored, base, reference={"type": "columns"}), {})
    create_run(Home.from_environment(), recipe, run_id="learned")
    before = Dataset.open(scored).fingerprint
    assert run(*command) == 0
    assert run(*command, "--tokens-at-once", 1) == 2
    assert "run 'learned' was trained on the rows in this folder" in capfd.readouterr().err
    assert Dataset.open(scored).fingerprint == before and not Dataset.open(scored).changed_shards()


def test_columns_of_other_weights_are_refused_unless_the_recipe_names_them(
    pairs: Path, base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = other_weights(base, tmp_path)
    assert run("data", "score", pairs, "--reference", other, "--out", tmp_path / "scored") == 0
    columns = {"type": "columns"}
    recipe = recipe_file(dpo_recipe(tmp_path / "scored", base, reference=columns), tmp_path)
    capfd.readouterr()
    assert run("train", recipe, "--run-id", "refused") == 2
    assert f"method.model.path={base}: its weights are" in capfd.readouterr().err
    assert not (tmp_path / "home" / "refused").exists()
    assert run("train", recipe, "--check", "--measure", 0, f"method.reference.path={other}") == 0
    new = {"type": "new", "vocab_size": 32, "hidden_size": 8, "num_heads": 2, "max_tokens": 64}
    recipe = recipe_file(dpo_recipe(tmp_path / "scored", base, reference=columns, model=new), tmp_path)
    assert run("train", recipe, "--run-id", "refused") == 2
    assert "method.model.type=new has other weights" in capfd.readouterr().err


def test_what_cannot_be_asked_is_refused_before_anything_is_written(
    pairs: Path, base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scored = tmp_path / "scored"
    assert run("data", "score", pairs, "--reference", base, "--out", scored) == 0
    small = save_tiny(LlamaForCausalLM, tmp_path / "small", seed=3)
    tree = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps({**tree, "max_position_embeddings": 9}))
    chats = language_dataset(tmp_path / "chats", num_rows=30)
    empty = tmp_path / "empty"
    empty.mkdir()
    for dataset, reference, out, output in (
        (pairs, small, "out", "it takes 9 tokens, but the longest row"),
        (chats, base, "out", "a reference scores pairs"),
        (scored, base, "out", "has the column ref_chosen_logps already"),
        (pairs, small, "scored", "it takes 9 tokens"),
        (pairs, base, "pairs/dataset", "the folder contains another dataset"),
        (pairs, empty, "out", "it has no config.json"),
        (pairs, "nobody", "out", "nobody"),
    ):
        capfd.readouterr()
        assert run("data", "score", dataset, "--reference", reference, "--out", tmp_path / out) == 2
        assert output in capfd.readouterr().err, output
    assert not (tmp_path / "out").exists()


def changed(base: Path, tmp_path: Path) -> None:
    shutil.copyfile(other_weights(base, tmp_path) / "model.safetensors", base / "model.safetensors")


def test_a_folder_that_changed_since_the_run_began_is_refused_when_it_goes_on(
    pairs: Path, base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_ = create_run(Home.from_environment(), LoadedConfig(dpo_recipe(pairs, base), {}), run_id="begun")
    assert set(run_.folders or ()) == {"method.model.path"}
    changed(base, tmp_path)
    assert run("train", "--resume", "begun") != 0
    output = capfd.readouterr().err
    assert f"method.model.path={base}: its weights and configuration" in output and "Restore the folder" in output
    assert not (Path(run_.run_dir) / "attempts").exists()


@pytest.mark.slow
def test_a_step_is_replayed_and_a_run_forked_beside_the_reference_that_it_had_only(
    pairs: Path, base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    frozen = shutil.copytree(base, tmp_path / "frozen")
    tree = dpo_recipe(pairs, base, reference={"type": "frozen", "path": str(frozen)})
    assert run("train", recipe_file(tree, tmp_path), "--run-id", "dpo", "trainer.max_steps=2") == 0
    retained = (frozen / "model.safetensors").read_bytes()
    changed(frozen, tmp_path)
    for command in (
        ("train", "--from", "dpo", "trainer.max_steps=4", "--run-id", "fork"),
        ("runs", "replay", "dpo", "--step", 1),
    ):
        capfd.readouterr()
        assert run(*command) != 0
        assert f"method.reference.path={frozen}: its weights" in capfd.readouterr().err
    assert not (tmp_path / "home" / "fork").exists()
    (frozen / "model.safetensors").write_bytes(retained)
    assert run("runs", "replay", "dpo", "--step", 1) == 0


@pytest.mark.slow
def test_a_run_and_the_folder_that_was_written_from_it_are_one_reference(
    pairs: Path, base: Path, tmp_path: Path
) -> None:
    sft = {"type": "sft", "train_on": "all", "model": {"type": "pretrained", "path": str(base)}}
    tree = preference_recipe(pairs, sft, trainer={"max_steps": 2, "commit_every": 1})
    assert run("train", recipe_file(tree, tmp_path), "--run-id", "sft") == 0
    assert run("data", "score", pairs, "--reference", "sft@1", "--out", tmp_path / "scored") == 0
    home = Home.from_environment()
    log = CommitLog(open_store(str(home.run_dir("sft"))))
    model = load_committed(home.run("sft"), log.commits()[0], log.store)
    model.network.save_pretrained(tmp_path / "written")
    for path, code in ((tmp_path / "written", 0), (base, 2)):
        tree = dpo_recipe(tmp_path / "scored", path, reference={"type": "columns"})
        assert run("train", recipe_file(tree, tmp_path), "--check", "--measure", 0) == code


def test_a_model_with_another_tokenizer_or_template_is_refused(
    base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = Tokenizer(WordLevel({f"t{number}": number for number in range(32)}, unk_token="t2"))
    words.pre_tokenizer = Whitespace()
    words.save(str(base / "tokenizer.json"))
    responses = [{"prompt": f"t{n}", "chosen": " t3", "rejected": " t4"} for n in range(5, 30)]
    chats = [
        {side: [{"role": "user", "content": f"t{n}"}, {"role": "assistant", "content": f"t{n + at}"}]
         for at, side in enumerate(("chosen", "rejected"))}
        for n in range(5, 30)
    ]  # fmt: skip
    (base / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }} {% endfor %}")
    for name, rows in (("answers", responses), ("chats", chats)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        build = ("data", "build", tmp_path / f"{name}.jsonl", "--tokenizer", base, "--out", tmp_path / name)
        assert run(*build, "--format", "pairs", "--end-token", "") == 0
    expected = json.loads((base / "tokenizer.json").read_text())
    vocabulary = expected["model"]["vocab"]
    vocabulary["t7"], vocabulary["t8"] = vocabulary["t8"], vocabulary["t7"]
    (base / "tokenizer.json").write_text(json.dumps(expected))
    recipe = recipe_file(dpo_recipe(tmp_path / "answers", base), tmp_path)
    capfd.readouterr()
    for command in (
        ("train", recipe, "--run-id", "refused"),
        ("data", "score", tmp_path / "answers", "--reference", base, "--out", tmp_path / "out"),
    ):
        assert run(*command) == 2
        assert "its tokenizer is not that of dataset 'answers': token 7 is 't8' there" in capfd.readouterr().err
    (base / "tokenizer.json").write_bytes((tmp_path / "chats" / "tokenizer.json").read_bytes())
    (base / "chat_template.jinja").write_text("{% for message in messages %}<{{ message.content }}>{% endfor %}")
    assert run("data", "score", tmp_path / "chats", "--reference", base, "--out", tmp_path / "out") == 2
    assert "its chat template is not the one that rendered dataset 'chats'" in capfd.readouterr().err
    assert not (tmp_path / "out").exists() and not (tmp_path / "home" / "refused").exists()


def test_a_folder_that_lacks_weights_is_refused_before_there_is_a_run(
    pairs: Path, base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    weights = load_file(base / "model.safetensors")
    name, _ = weights.popitem()
    holed = shutil.copytree(base, tmp_path / "holed")
    save_file(weights, holed / "model.safetensors", metadata={"format": "pt"})
    reference = {"type": "frozen", "path": str(holed)}
    for tree in (dpo_recipe(pairs, holed), dpo_recipe(pairs, base, reference=reference)):
        recipe = recipe_file(tree, tmp_path)
        for options in (("--check",), ("--check", "--measure", 0), ("--run-id", "holed")):
            assert run("train", recipe, *options) == 2
            assert f"{holed}: its tensors are not those" in (output := capfd.readouterr().err) and name in output
    assert run("data", "score", pairs, "--reference", holed, "--out", tmp_path / "out") == 2
    assert name in capfd.readouterr().err
    assert not [*Home.from_environment().runs()] and not (tmp_path / "out").exists()
