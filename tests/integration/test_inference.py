"""Models that were trained answer over a real server and real engine processes, asked by the official SDK."""

import json
import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
import yaml

from assay.base.clock import SystemClock
from assay.base.config import LoadedConfig
from assay.data.dataset.build import build_dataset
from assay.data.dataset.fields import BuildConfig
from assay.data.dataset.tokens import load_tokenizer
from assay.inference.protocol import SamplingParams
from assay.records.fine_tuning_job import JobCheckpoint, JobCreated, JobSucceeded, JobValidated
from assay.records.run import Run
from assay.serving.ids import checkpoint_name, new_id
from assay.serving.jobs import JobRepository
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.workflows.export.chat import run_to_talk_with
from assay.workflows.run import create_run
from integration.test_language_export import KEYS, MODEL, PROMPTS, built, chat, conversations, recipe
from integration.test_serving import Here, create, ours
from one_rank import train_here
from slurm_cluster import wait_until
from tiny_causal import new_causal_network, save_causal

__all__ = ["conversations"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SFT = {"type": "sft", "train_on": "spans", "model": {**MODEL, "max_tokens": 128}}
CLASSIFY = {
    "type": "classify",
    "encoder": {
        "type": "new", "vocab_size": 320, "hidden_size": 16, "num_layers": 1, "num_heads": 2,
        "intermediate_size": 32, "max_tokens": 128,
    },
}  # fmt: skip
REWARD = {"type": "reward", "model": MODEL}
QUESTION = [{"role": "user", "content": "3 plus 4"}]


def trained_job(
    home: Home, dataset: Path, method: dict[str, Any], api_method: str, num_steps: int = 4
) -> tuple[str, Run]:
    """A job whose run was trained here: two commits, half way and at the end; the name of its model."""
    job_id = new_id("ftjob", time.time())
    tree = recipe(dataset, method)
    tree["trainer"] |= {"max_steps": num_steps, "commit_every": num_steps // 2, "epochs": num_steps}
    run = create_run(home, LoadedConfig(tree, {}), run_id=job_id)
    train_here(run)
    jobs, at = JobRepository(open_store(str(home.api)), SystemClock()), {"at_s": time.time(), "lease": 1}
    created = JobCreated(
        job_id=job_id, project="default", at_s=time.time(), model="tiny", base={}, method=api_method,
        hyperparameters={}, training_file="file-" + "0" * 24, seed=0, request_sha256="",
    )  # fmt: skip
    state = jobs.put(created)
    jobs.note_model(created)
    validated = {"num_rows": 64, "dataset_fingerprint": "", "num_steps": num_steps, "hyperparameters": {}}
    entries: list[Any] = [JobValidated(**at, run_id=job_id, **validated)]
    commits = [item for item in CommitLog(open_store(run.store_url)).commits() if item.step]
    for commit in commits:
        retained = tuple(item.step for item in commits if item.step <= commit.step)
        digest = commit.weights_digest
        entries.append(JobCheckpoint(**at, step=commit.step, weights_digest=digest, retained_steps=retained, points=()))
    entries.append(
        JobSucceeded(
            **at,
            step=num_steps,
            weights_digest=digest,
            result_file="file-" + "1" * 24,
            trained_tokens=9,
            measured={},
        )
    )
    for entry in entries:
        jobs.log(job_id).append(lambda _, entry=entry: entry)
    jobs.close(job_id)
    return state.model, run


def labelled_dataset(folder: Path, conversations: Path) -> Path:
    folder.mkdir()
    lines = [{"text": text, "label": n % 2, **KEYS[n]} for n, text in enumerate(PROMPTS)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    config = BuildConfig(tokenizer=str(conversations), key_field="topic", label_field="label")
    build_dataset([folder / "rows.jsonl"], folder / "dataset", config)
    return folder / "dataset"


class Served(Here):
    """A server with models of each kind."""

    def __init__(self, folder: Path, conversations: Path) -> None:
        super().__init__(folder)
        torch.manual_seed(0)
        network = new_causal_network(vocab_size=320, hidden_size=64, num_layers=4, num_heads=4, max_tokens=4096).eval()
        save_causal(self.models / "long", network, load_tokenizer(conversations))
        base = {"recipe": {**{name: recipe(conversations, SFT)[name] for name in ("loader", "trainer")}}}
        base["recipe"]["method"] = {"type": "sft", "train_on": "spans"}
        base["recipe"]["method"]["model"] = {"type": "pretrained", "path": "long"}
        long = {"tokenizer": str(conversations / "tokenizer.json"), "methods": {"supervised": base}}
        (self.models / "long.yaml").write_text(yaml.safe_dump(long))
        self.chat, self.chat_run = trained_job(self.home, conversations, SFT, "supervised")
        labelled = labelled_dataset(folder / "labelled", conversations)
        self.classifier, self.classifier_run = trained_job(self.home, labelled, CLASSIFY, "classification")
        pairs = [
            {"chosen": chat(n, f"that is {n}"), "rejected": chat(n, "who knows"), **KEYS[n]}
            for n in range(len(PROMPTS))
        ]
        (folder / "pairs").mkdir()
        preferences = built(folder / "pairs", "pairs", pairs, tokenizer=str(conversations))
        self.reward, self.reward_run = trained_job(self.home, preferences, REWARD, "reward_model")
        self.server, self.sdk = self.serve()

    def engines(self) -> list[int]:
        """Processes of the server's engines."""
        forked_from = children(self.server.pid)
        return [child for pid in forked_from for child in children(pid)]


def children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(path.parent.name))
    return found


def is_living(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def served(tmp_path_factory, conversations) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("served"), conversations)
    try:
        yield found
    finally:
        found.end()


@pytest.fixture
def sdk(served) -> openai.OpenAI:
    return served.sdk


def chats(sdk: openai.OpenAI, model: str, **options):
    return sdk.chat.completions.create(model=model, messages=QUESTION, **{"max_completion_tokens": 20, **options})


def test_a_chat_model_and_its_checkpoint_say_what_they_say_in_process(served, sdk):
    for name, step in ((served.chat, 4), (checkpoint_name(served.chat, 2), 2)):
        local = run_to_talk_with(served.home, served.chat_run.run_id, step=step, tokenizer=None)
        for seed in range(3):
            sampling = SamplingParams(temperature=1.0, max_tokens=20, seed=seed)
            (expected,) = local.generate([QUESTION], sampling)
            whole = chats(sdk, name, seed=seed)
            assert whole.choices[0].message.content == expected.text
            assert whole.choices[0].finish_reason == expected.finish_reason
            assert whole.usage.completion_tokens == expected.completion_tokens
            assert whole.usage.prompt_tokens == expected.prompt_tokens
            stream = chats(sdk, name, seed=seed, stream=True)
            output = [choice.delta.content for chunk in stream for choice in chunk.choices]
            assert "".join(output) == expected.text
    assert chats(sdk, served.chat, seed=1).system_fingerprint != whole.system_fingerprint


def test_a_prompts_log_probabilities_are_those_in_process(served, sdk):
    local = run_to_talk_with(served.home, served.chat_run.run_id, step=4, tokenizer=None)
    for text in ("3 plus 4", "that is 12<|im_end|>\n"):
        tokens = local.tokens_of(text)
        prompt = tokens if "<|" in text else text  # text that holds a control token is refused
        nats = [-bits * math.log(2) for bits in local.text_bits(text).bits.tolist()]
        for max_tokens in (0, 1):
            response = sdk.completions.create(
                model=served.chat, prompt=prompt, echo=True, logprobs=1, max_tokens=max_tokens, temperature=0
            )
            found = response.choices[0].logprobs
            assert found.token_logprobs[0] is None
            assert found.token_logprobs[1 : len(nats)] == pytest.approx(nats[1:], abs=1e-4)
            assert len(found.tokens) == len(nats) + max_tokens
        request = sdk.completions.create(
            model=served.chat, prompt=[tokens, tokens], echo=True, logprobs=1, max_tokens=1, temperature=0
        )
        assert [choice.logprobs.token_logprobs for choice in request.choices] == [found.token_logprobs] * 2
        assert request.choices[0].logprobs.top_logprobs == found.top_logprobs


def test_one_models_tokenizer_is_below_its_own_address(served, sdk):
    at = str(sdk.base_url).rstrip("/") + f"/x/models/{served.chat}"
    own = sdk.with_options(base_url=f"{at}/v1")
    assert own.completions.create(model=served.chat, prompt="3", max_tokens=1).choices
    local = run_to_talk_with(served.home, served.chat_run.run_id, step=4, tokenizer=None)
    info = own.with_options(base_url=at).get("/tokenizer_info", cast_to=object)
    assert info["eos_token"] == "<|im_end|>" and "im_start" in info["chat_template"]
    body = {"prompt": "3 plus 4", "add_special_tokens": False}
    tokens = own.with_options(base_url=at).post("/tokenize", body=body, cast_to=object)["tokens"]
    assert tokens == local.tokens_of("3 plus 4")
    text = own.with_options(base_url=at).post("/detokenize", body={"tokens": tokens}, cast_to=object)
    assert text == {"prompt": "3 plus 4"}


def predicted(served: Served, run: Run, row: dict[str, Any]) -> dict[str, Any]:
    """What `assay eval predict` says of one row."""
    file = served.folder / "row.jsonl"
    file.write_text(json.dumps(row))
    output = str(served.folder / "answers.jsonl")
    assert served.start("eval", "predict", run.run_id, str(file), "--out", output, "--force").wait() == 0
    return json.loads((served.folder / "answers.jsonl").read_text())


def test_a_classifier_and_a_reward_model_decide_what_assay_predict_says(served, sdk):
    request = [{"type": "predicate", "instructions": ""}]
    decision = sdk.decisions.create(model=served.classifier, input="5 plus 5", questions=request)
    expected = predicted(served, served.classifier_run, {"text": "5 plus 5"})
    assert decision.answers[0].probability == pytest.approx(expected["probability"], abs=1e-7)
    conversation = chat(7, "that is 7")
    request = [{"type": "score", "instructions": "", "levels": []}]
    decision = sdk.decisions.create(model=served.reward, input=conversation, questions=request)
    expected = predicted(served, served.reward_run, {"messages": conversation})
    assert decision.answers[0].score == pytest.approx(expected["reward"], abs=1e-6)
    for model in (served.classifier, served.reward, served.chat, "long"):
        vectors = sdk.embeddings.create(model=model, input=["5 plus 5", "3 plus 4"]).data
        assert vectors[0].embedding != vectors[1].embedding
    with pytest.raises(openai.BadRequestError, match="which does not generate text") as cannot:
        chats(sdk, served.classifier)
    assert cannot.value.code == "model_cannot"
    with pytest.raises(openai.BadRequestError, match="This base model has no weights"):
        sdk.embeddings.create(model="tiny", input="x")


def test_every_model_is_listed_and_never_more_are_loaded_than_there_is_room_for(served, sdk):
    names = [item.id for item in sdk.models.list()]
    for model in (served.chat, served.classifier, served.reward):
        assert {model, checkpoint_name(model, 2), checkpoint_name(model, 4)} <= set(names)
        assert sdk.models.retrieve(checkpoint_name(model, 2)).owned_by == "default"
    assert {"tiny", "long"} <= set(names)
    for name in names:
        if name != "tiny":
            assert sdk.embeddings.create(model=name, input="5 plus 5").data[0].embedding
    wait_until(lambda: len(served.engines()) == 2, "all but the last two to be gone")
    with pytest.raises(openai.NotFoundError) as absent:
        sdk.embeddings.create(model=checkpoint_name(served.chat, 3), input="x")
    assert absent.value.code == "model_not_found"


def test_a_client_that_hangs_up_frees_the_engine(served, sdk):
    arguments = {"model": "long", "messages": QUESTION, "temperature": 0}
    began_s = time.monotonic()
    whole = sdk.chat.completions.create(**arguments, max_completion_tokens=600)
    whole_s = time.monotonic() - began_s
    assert whole.usage.completion_tokens == 600  # long enough to be cut off
    with sdk.chat.completions.create(**arguments, max_completion_tokens=3000, stream=True) as stream:
        next(stream)  # whose it is; the text of what a random network says may be long in coming
    began_s = time.monotonic()
    sdk.chat.completions.create(**arguments, max_completion_tokens=1)
    assert time.monotonic() - began_s < whole_s
    with pytest.raises(openai.APITimeoutError):
        sdk.with_options(timeout=0.3).chat.completions.create(**arguments, max_completion_tokens=3000)
    began_s = time.monotonic()
    sdk.chat.completions.create(**arguments, max_completion_tokens=1)
    assert time.monotonic() - began_s < whole_s


def test_a_killed_engine_is_told_once_and_the_next_request_has_another(served, sdk):
    chats(sdk, "long", max_completion_tokens=1)
    arguments = {"model": "long", "messages": QUESTION, "temperature": 0, "max_completion_tokens": 3000}
    with sdk.chat.completions.create(**arguments, stream=True) as stream:
        next(stream)
        for pid in served.engines():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(openai.APIError, match="The process of this model died"):
            for _ in stream:
                pass
    assert chats(sdk, "long", max_completion_tokens=1).choices
    for pid in served.engines():  # idle: the SDK asks again at most
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not [pid for pid in served.engines() if is_living(pid)], "their end")
    assert chats(sdk.with_options(max_retries=2), "long", max_completion_tokens=1).choices


def test_a_server_that_is_killed_leaves_no_engine(served, sdk):
    chats(sdk, served.chat)
    arguments = {"model": "long", "messages": QUESTION, "max_completion_tokens": 600}
    with sdk.chat.completions.create(**arguments, stream=True) as stream:
        next(stream)
        left = served.engines()
        assert len(left) == 2
        served.server.send_signal(signal.SIGSTOP)  # what is said from now on lies unread, which resets the socket
        wait_until(lambda: all(map(is_idle, left)), "the end of the answer")
        served.kill(served.server)
    wait_until(lambda: not any(is_living(pid) for pid in left), "engines to leave")
    served.server, served.sdk = served.serve()


def is_idle(pid: int) -> bool:
    """Whether a process takes no processor time for a moment."""
    stat = Path(f"/proc/{pid}/stat")
    before = stat.read_text().rpartition(")")[2].split()[11:13]
    time.sleep(0.3)
    return stat.read_text().rpartition(")")[2].split()[11:13] == before


def commit_after_requests(sdk: openai.OpenAI, job_id: str, questions: list[Any]) -> int:
    """When the newest checkpoint was committed, in whole seconds; one may be let go before it is loaded."""
    while True:
        checkpoint = sdk.fine_tuning.jobs.checkpoints.list(job_id).data[0]
        name = checkpoint.fine_tuned_model_checkpoint
        try:
            assert sdk.decisions.create(model=name, input="return yield", questions=questions).answers
        except openai.BadRequestError as refused:
            assert refused.code == "model_not_usable"
        else:
            return int(checkpoint.created_at)


def test_a_checkpoint_answers_soon_after_its_commit(here_with_worker, record_property):
    _, sdk = here_with_worker
    job = create(sdk, n_epochs=30)
    request = [{"type": "predicate", "instructions": ""}]
    waits = []
    for _ in range(3):
        before = ours(sdk.fine_tuning.jobs.retrieve(job.id))["committed_step"]
        wait_until(
            lambda before=before: ours(sdk.fine_tuning.jobs.retrieve(job.id))["committed_step"] > before,
            "a commit",
        )
        committed_s = commit_after_requests(sdk, job.id, request)
        waits.append(time.time() - committed_s)
    record_property("commit_to_answer_s", waits)
    print("commit to answer, s:", waits)
    assert min(waits) < 5.0, waits


@pytest.fixture
def here_with_worker(tmp_path) -> Iterator[tuple[Here, openai.OpenAI]]:
    here = Here(tmp_path)
    try:
        _, sdk = here.serve()
        here.work()
        yield here, sdk
    finally:
        here.end()


def test_the_server_itself_never_holds_torch(served, sdk):
    assert chats(sdk, served.chat).choices
    assert "libtorch" not in Path(f"/proc/{served.server.pid}/maps").read_text()
    assert any("libtorch" in Path(f"/proc/{pid}/maps").read_text() for pid in served.engines())
