"""A model folder is loaded whole, or refused by the names of its tensors or files."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from assay.base.digest import sha256_of_file
from assay.base.errors import AssayError, ConfigError, DamagedDataError
from assay.models.causal import build_causal, build_decoder, load_causal
from assay.models.causal_config import PretrainedCausalConfig
from assay.models.config import PretrainedEncoderConfig
from assay.models.pretrained import CAUSAL, check_pretrained, load_pretrained
from assay.models.reward_network import RewardNetwork
from assay.records.commit import FileDigest
from assay.records.exported_model import EXPORT_FILE, ExportedModel
from assay.store.model_folder import folder_digests
from assay.training.methods.classify.network import build_encoder
from assay.training.reference_model import ReferenceModel
from assay.workflows.export.chat import folder_to_talk_with
from variants import slow

WEIGHTS = "model.safetensors"
Tensors = dict[str, torch.Tensor]


def new_folder(folder: Path, architecture: str = "llama", kind=AutoModelForCausalLM, **sizes) -> Path:
    torch.manual_seed(0)
    small = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    small |= {"intermediate_size": 24, "max_position_embeddings": 32, "pad_token_id": None} | sizes
    kind.from_config(AutoConfig.for_model(architecture, **small)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return new_folder(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture
def changed(base, tmp_path) -> Callable[[Callable[[Tensors], Tensors]], Path]:
    """A copy of the folder with other tensors in it."""

    def copy(change: Callable[[Tensors], Tensors], of: Path = base) -> Path:
        shutil.copytree(of, tmp_path / "copy", dirs_exist_ok=True)
        save_file(change(load_file(of / WEIGHTS)), tmp_path / "copy" / WEIGHTS, {"format": "pt"})
        return tmp_path / "copy"

    return copy


def config(folder: Path) -> PretrainedCausalConfig:
    return PretrainedCausalConfig(type="pretrained", path=str(folder))


LOADERS = {
    "policy": lambda folder: build_causal(config(folder)),
    "reward": lambda folder: RewardNetwork(config(folder)),
    "reference": lambda folder: ReferenceModel.from_folder(str(folder)),
    "asked": lambda folder: load_causal(str(folder)),
    "chat": lambda folder: folder_to_talk_with(str(folder)),
    "encoder": lambda folder: build_encoder(PretrainedEncoderConfig(type="pretrained", path=str(folder))),
    "check": lambda folder: check_pretrained(CAUSAL, folder),
}


@pytest.mark.parametrize("loader", LOADERS)
@given(data=st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_tensor_that_is_dropped_renamed_or_reshaped_is_refused_by_name(changed, base, loader, data) -> None:
    names = sorted(load_file(base / WEIGHTS))
    if loader in ("reward", "encoder"):
        names.remove("lm_head.weight")  # which they do not have
    name = data.draw(st.sampled_from(names))
    how = data.draw(st.sampled_from(["drop", "rename", "wrap", "reshape", "transpose"]))

    def change(tensors: Tensors) -> Tensors:
        tensor = tensors.pop(name)
        match how:
            case "rename":
                tensors[f"{name}_"] = tensor
            case "wrap":
                tensors[f"_orig_mod.{name}"] = tensor
            case "reshape":
                tensors[name] = tensor[:-1].clone()
            case "transpose":
                tensors[name] = (
                    tensor[None].clone() if tensor.ndim == 1 or len(set(tensor.shape)) == 1 else tensor.T.contiguous()
                )
        return tensors

    with pytest.raises(
        ConfigError,
        match=f"{name.removeprefix('model.')}.*missing|{name.removeprefix('model.')}.*another shape",
    ):
        LOADERS[loader](changed(change))


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "base_model.model."])
def test_a_prefix_before_all_names_is_named_with_its_cause(changed, prefix) -> None:
    folder = changed(lambda tensors: {f"{prefix}{name}": tensor for name, tensor in tensors.items()})
    with pytest.raises(ConfigError, match=f"21 tensors .*missing.*The names begin with '{prefix}', as a wrapper"):
        load_causal(str(folder))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda w: {**w, "extra.weight": torch.ones(2)}, r"1 tensor \(extra.weight\) is unknown to the model"),
        (lambda w: {**w, "norm.weight": torch.ones(16)}, r"1 tensor \(norm.weight\) is stored twice"),
        (lambda w: {**w, "score.weight": torch.ones(1, 16)}, r"1 tensor \(score.weight\) is unknown"),
        (lambda w: {**w, "model.layers.0.q_proj.lora_A.weight": torch.ones(2, 2)}, "adapters: merge them"),
        (lambda w: {**w, "model.norm.weight": torch.full((16,), torch.nan)}, "model.norm.weight.*not finite"),
        (lambda w: {**w, "model.norm.weight": torch.tensor([torch.inf] + [1.0] * 15)}, "norm.weight.*not finite"),
        (lambda w: {**w, "model.norm.weight": torch.ones(16).to(torch.int8)}, "stored as I8: quantized"),
        (lambda w: {**w, "lm_head.weight": w["lm_head.weight"].to(torch.float8_e4m3fn)}, "F8_E4M3: quantized"),
        (lambda w: {**w, "scale": torch.ones(())}, r"1 tensor \(scale\) is unknown"),
    ],
)  # fmt: skip
def test_tensors_that_would_be_dropped_or_mean_something_else_are_refused(changed, change, text) -> None:
    folder = changed(change)
    with pytest.raises(ConfigError, match=text):
        load_causal(str(folder))
    if "finite" not in text:
        with pytest.raises(ConfigError, match=text):
            check_pretrained(CAUSAL, folder)


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("gpt2", {}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("olmo2", {}),
    ],
)
def test_intact_folders_are_loaded_with_all_of_their_weights(tmp_path, architecture, sizes) -> None:
    folder = new_folder(tmp_path, architecture, **sizes)
    stored = load_file(folder / WEIGHTS)
    check_pretrained(CAUSAL, folder)
    for network in (build_causal(config(folder)), build_decoder(config(folder))[0]):
        own = network.state_dict()
        assert all(
            torch.equal(tensor, stored.get(name, stored.get(f"{network.base_model_prefix}.{name}", tensor)))
            for name, tensor in own.items()
        )


@pytest.mark.parametrize("old", ["model.layers.0.self_attn.rotary_emb.inv_freq"])
def test_buffers_of_older_transformers_are_harmless(changed, old) -> None:
    build_causal(config(changed(lambda w: {**w, old: torch.ones(4)})))


def test_a_folder_without_a_head_trains_a_reward_model_and_no_policy(tmp_path) -> None:
    folder = new_folder(tmp_path, kind=AutoModel)
    RewardNetwork(config(folder))
    with pytest.raises(ConfigError, match=r"1 tensor \(lm_head.weight\) is missing"):
        build_causal(config(folder))


def test_a_reward_model_goes_on_with_the_head_of_its_folder(tmp_path, changed) -> None:
    folder = new_folder(tmp_path / "reward", kind=AutoModelForSequenceClassification, num_labels=1)
    head = load_file(folder / WEIGHTS)["score.weight"]
    assert torch.equal(RewardNetwork(config(folder)).head.weight, head)
    with pytest.raises(ConfigError, match=r"1 tensor \(score.weight\) is missing"):
        RewardNetwork(config(changed(lambda w: {k: v for k, v in w.items() if k != "score.weight"}, folder)))
    three = new_folder(tmp_path / "three", kind=AutoModelForSequenceClassification, num_labels=3)
    with pytest.raises(ConfigError, match="a classifier whose head has 3 rows"):
        RewardNetwork(config(three))


def sharded(base: Path, folder: Path) -> Path:
    AutoModelForCausalLM.from_pretrained(base).save_pretrained(folder, max_shard_size="5KB")
    return folder


def test_shards_are_loaded_whole_or_the_missing_one_is_named(base, tmp_path) -> None:
    folder = sharded(base, tmp_path / "sharded")
    check_pretrained(CAUSAL, folder)
    load = LOADERS["policy"]
    assert all(torch.equal(a, b) for a, b in zip(load(folder).parameters(), load(base).parameters(), strict=True))
    shard = sorted(folder.glob("model-*.safetensors"))[0]
    retained = load_file(shard)
    name = next(iter(retained))
    save_file({**{k: v for k, v in retained.items() if k != name}, "x": torch.ones(1)}, shard, {"format": "pt"})
    with pytest.raises(ConfigError, match=f"{name.removeprefix('model.')}.*missing"):
        load(folder)
    shard.unlink()
    with pytest.raises(ConfigError, match=f"{shard.name}: cannot be read"):
        load(folder)
    shutil.copy(base / WEIGHTS, folder)
    with pytest.raises(ConfigError, match=r"holds model.safetensors and model.safetensors.index.json"):
        load(folder)


def test_a_tensor_in_two_shards_is_refused(base, tmp_path) -> None:
    folder = sharded(base, tmp_path / "sharded")
    first, second = sorted(folder.glob("model-*.safetensors"))[:2]
    name, tensor = next(iter(load_file(first).items()))
    save_file({**load_file(second), name: tensor * 2}, second, {"format": "pt"})
    with pytest.raises(ConfigError, match=f"{name} is stored in two shards"):
        build_causal(config(folder))


def test_pickled_weights_are_held_against_the_model_too(base, tmp_path) -> None:
    shutil.copy(base / "config.json", tmp_path)
    tensors = load_file(base / WEIGHTS)
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    build_causal(config(tmp_path))
    tensors.pop("model.norm.weight")
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"1 tensor \(model.norm.weight\) is missing"):
        build_causal(config(tmp_path))


def test_adapters_beside_weights_are_refused(base, tmp_path) -> None:
    shutil.copytree(base, tmp_path / "both")
    (tmp_path / "both" / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"holds adapters \(adapter_config.json\)"):
        build_causal(config(tmp_path / "both"))


def exported(base: Path, folder: Path) -> Path:
    """The folder as `assay runs export` would leave it."""
    shutil.copytree(base, folder)
    (folder / "tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"},
            }
        )
    )
    (folder / "tokenizer_config.json").write_text('{"eos_token": "a"}')
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    files = [
        FileDigest(path=path.name, num_bytes=path.stat().st_size, sha256=sha256_of_file(path))
        for path in sorted(folder.iterdir())
    ]
    record = ExportedModel(
        run_id="r", step=1, weights_digest="", recipe={}, recipe_sha256="", dataset="d", dataset_fingerprint="",
        columns={}, tokenizer_sha256="", is_tokenizer_proved=True, max_tokens=8, code_version="",
        exported_by="", exported_s=0.0, files=tuple(files), form="language_model",
    )  # fmt: skip
    (folder / EXPORT_FILE).write_text(record.to_sealed_json() + "\n")
    return folder


@pytest.mark.parametrize("seed", [0, *slow(*range(1, 10))])
@pytest.mark.parametrize("loader", ["policy", "reward", "reference", "asked", "chat"])
def test_any_byte_that_changed_in_any_file_of_an_exported_folder_is_refused_by_name(
    base, tmp_path, loader, seed
) -> None:
    folder, rng = exported(base, tmp_path / "exported"), random.Random(seed)
    LOADERS[loader](folder)
    for path in sorted(folder.iterdir()):
        intact = path.read_bytes()
        flipped = bytearray(intact)
        flipped[rng.randrange(len(intact))] ^= rng.randrange(1, 256)
        path.write_bytes(flipped)
        with pytest.raises(AssayError, match=path.name.replace(".", r"\.")):
            LOADERS[loader](folder)
        path.write_bytes(intact)
    (folder / WEIGHTS).unlink()
    with pytest.raises(DamagedDataError, match=r"model.safetensors: not the file that was exported"):
        LOADERS[loader](folder)


def test_a_tied_head_with_numbers_of_its_own_is_refused_and_an_equal_one_is_not(changed, tmp_path) -> None:
    folder = new_folder(tmp_path / "tied", tie_word_embeddings=True)
    with pytest.raises(ConfigError, match=r"ties the head to the embedding.*stored with other numbers"):
        load_pretrained(CAUSAL, changed(lambda w: {**w, "lm_head.weight": torch.ones(40, 16)}, folder))
    load_pretrained(CAUSAL, changed(lambda w: {**w, "lm_head.weight": w["model.embed_tokens.weight"].clone()}, folder))


def test_masks_that_earlier_versions_of_transformers_stored_are_no_weights(changed, tmp_path) -> None:
    folder = new_folder(tmp_path / "gpt2", "gpt2")
    masks = {"transformer.h.0.attn.bias": torch.ones(1, 1, 32, 32), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    stored = changed(lambda w: {**w, **masks}, folder)
    check_pretrained(CAUSAL, stored)
    load_pretrained(CAUSAL, stored)


@pytest.mark.parametrize(
    ("file", "text", "shows"),
    [
        ("model.safetensors.index.json", '{"weight_map": {"a": 3}}', "/3: cannot be read"),
        ("model.safetensors.index.json", '{"weight_map": ' + "[" * 9999, "not an index of shards"),
        ("unrelated.pt", "", "it has no weights"),
    ],
)
def test_a_folder_without_its_weights_is_refused_before_it_is_loaded(changed, file, text, shows) -> None:
    folder = changed(lambda w: w)
    (folder / WEIGHTS).unlink()
    (folder / file).write_text(text)
    with pytest.raises(ConfigError, match=shows):
        check_pretrained(CAUSAL, folder)


@pytest.mark.parametrize("text", ["{", "[" * 9999, "[]"])
def test_a_configuration_that_cannot_be_read_is_refused_rather_than_taken_for_empty(changed, text) -> None:
    folder = changed(lambda w: w)
    (folder / "generation_config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"generation_config.json: (cannot be read|holds no JSON object)"):
        config(folder).end_ids()


def test_the_digest_of_a_folder_leaves_out_a_link_to_nothing(changed) -> None:
    folder = changed(lambda w: w)
    digest = folder_digests(folder)
    (folder / "other.safetensors").symlink_to("nowhere")
    assert folder_digests(folder) == digest
