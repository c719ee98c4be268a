"""An exported model of a session is, for PEFT and for transformers, the model of the session."""

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from assay.base.errors import ConfigError
from assay.cli.main import cli
from assay.distributed.ranks import Ranks
from assay.records.exported_model import EXPORT_FILE, ExportedModel
from assay.records.session import SessionModel
from assay.workers.sessions.export import export_session
from assay.workers.sessions.rank_models import OwnModels
from forked_ranks import on_ranks
from session_requests import MODEL, RequestedSession

ADAPTED = MODEL._replace(number=1)
IDS = torch.arange(3, 13)[None]


class Adapted:
    """A session with an adapter that was trained for three steps, and saved behind the second one."""

    def __init__(self, folder: Path, *, tied: bool) -> None:
        self.base, self.home = folder / "base", folder / "home"
        torch.manual_seed(5)
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=300, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                max_position_embeddings=64, tie_word_embeddings=tied,
            )
        ).save_pretrained(self.base)  # fmt: skip
        session = RequestedSession(self.home)
        [method] = session.base["methods"].values()
        method["recipe"]["method"]["model"] = {"type": "pretrained", "path": str(self.base)}
        model = SessionModel(at_s=0.0, model_index=1, base_model="tiny", base=session.base, lora_rank=2, lora_seed=3)
        session.sessions.add_model(MODEL.session_id, model)
        self.sessions = session.sessions
        self.logits: dict[int, Any] = dict(enumerate(on_ranks(1, lambda ranks: self._train(session, ranks), folder)[0]))

    def _train(self, session: RequestedSession, ranks: Ranks) -> list[Any]:
        """Execute; return logits after each step."""
        session.create(1)
        for seq_id in (1, 3):
            session.step(seq_id, target=ADAPTED)
        session.send(5, "save_weights_for_sampler", target=ADAPTED, path="second")
        session.step(6, target=ADAPTED)
        of_process, found = OwnModels(session.sessions, ranks), []
        executor = session.executor(of_process, number=1)
        while executor.execute_next():
            trainer = of_process.models.trainer(ADAPTED)
            assert trainer is not None
            if executor.next_seq_id in (1, 3, 5, 8):
                network: Any = trainer.model.network
                with torch.no_grad():
                    found.append(network(input_ids=IDS, use_cache=False).logits.numpy())
        return found


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def adapted(request: pytest.FixtureRequest, tmp_path: Path) -> Adapted:
    return Adapted(tmp_path, tied=request.param)


def exported(adapted: Adapted, to: Path, name: str = str(ADAPTED), **options: Any) -> ExportedModel:
    options = {"step": None, "adapters": "merged", "is_forced": False, **options}
    found = export_session(adapted.sessions, name, to=to, **options)
    assert found.record == ExportedModel.from_json((to / EXPORT_FILE).read_bytes(), source=to)
    return found.record


@torch.no_grad()
def logits_of(model: Any) -> Any:
    return model.eval()(input_ids=IDS, use_cache=False).logits


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")  # PEFT says it as it loads
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # PEFT asks it
def test_an_adapter_has_equal_logits_in_peft_at_each_step_and_path(adapted: Adapted, tmp_path: Path) -> None:
    from peft import PeftModel

    path = f"tinker://{ADAPTED}/sampler_weights/second"
    for number, (name, step, expected) in enumerate(
        [(str(ADAPTED), None, 3), (str(ADAPTED), 1, 1), (str(ADAPTED), 2, 2), (path, None, 2)]
    ):
        folder = tmp_path / str(number)
        record = exported(adapted, folder, name, step=step, adapters="apart")
        assert record.step == expected and record.base_sha256 is not None
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(adapted.base), folder)
        assert torch.equal(logits_of(model), torch.from_numpy(adapted.logits[expected])), (name, step)
    assert len({logits.tobytes() for logits in adapted.logits.values()}) == 4, "each step changes them"


def test_a_merged_model_has_the_logits_in_plain_transformers(adapted: Adapted, tmp_path: Path) -> None:
    record = exported(adapted, tmp_path / "merged")
    assert record.base_sha256 is None and record.form == "language_model"
    found = logits_of(AutoModelForCausalLM.from_pretrained(tmp_path / "merged"))
    torch.testing.assert_close(found, torch.from_numpy(adapted.logits[3]), rtol=1e-5, atol=1e-6)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged")("a model")["input_ids"]
    assert str(tmp_path) not in "".join(file.read_text("latin-1") for file in (tmp_path / "merged").iterdir())


def test_the_command_writes_a_folder_and_refuses_what_is_not_there(
    adapted: Adapted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(adapted.home))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["runs", "export", f"{ADAPTED}@2", "--adapters", "apart"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / f"{ADAPTED.session_id}-train-1-step2" / "adapter_model.safetensors").is_file()
    with pytest.raises(ConfigError, match="exists already"):
        exported(adapted, tmp_path / f"{ADAPTED.session_id}-train-1-step2", step=2)
    for name, options, words in (
        (str(ADAPTED), {"step": 4}, "has executed 3 steps"),
        (ADAPTED.session_id, {}, "names no model, or several"),
        (f"tinker://{ADAPTED}/weights/second", {}, "no saved weights"),
        (f"tinker://{ADAPTED}/sampler_weights/second", {"step": 1}, "a path names saved weights"),
    ):
        with pytest.raises(ConfigError, match=words):
            exported(adapted, tmp_path / "refused", name, **options)
    assert not [file for file in tmp_path.iterdir() if "refused" in file.name]
