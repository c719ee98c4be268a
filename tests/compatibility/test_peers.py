"""lm-eval, inspect-ai and oaieval ask a served model, by the files and commands of docs/serve.md.

What each should find is computed in this process from the same commit: what the model says, and how likely it
finds what it is asked to rank. The tools have no way to a hub: every address but this machine's is refused.
"""

import json
import math
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.base.clock import SystemClock
from assay.inference.local.local_model import LocalModel
from assay.inference.protocol import SamplingParams
from assay.serving.keys import KeyRepository
from assay.store.objects import open_store
from assay.workflows.export.chat import run_to_talk_with
from compatibility.environment import python_with
from docs.test_first_hour import FILE
from integration.test_inference import trained_job
from integration.test_language_export import PROMPTS, conversations
from integration.test_serving import Here

__all__ = ["conversations"]
pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
PAGE = Path(__file__).parents[2] / "docs" / "serve.md"
SECTION = PAGE.read_text().partition("## Other evaluation tools\n")[2].partition("\n## ")[0]
COMMAND = re.compile(r"^    ((?:[A-Z_]+=\S+ )+[a-z-]+ (?:.*\\\n)*.*)$", re.M)
WINDOW, MAX_TOKENS, NUM_STEPS = 96, 20, 60
SFT = {
    "type": "sft",
    "train_on": "spans",
    "model": {
        "type": "new", "vocab_size": 320, "hidden_size": 32, "num_layers": 2, "num_heads": 2,
        "intermediate_size": 64, "max_tokens": WINDOW,
    },
}  # fmt: skip
SUMS = PROMPTS[::5]
TEXTS = [f"{sum_}\n{('', 'that', 'that is')[index % 3]}" for index, sum_ in enumerate(SUMS)]
"""The same questions as texts to go on with, some of them in the midst of an answer. The API takes control tokens as
messages or ids only."""
NOWHERE = "http://127.0.0.1:9"


class ServedTools:
    """A served model, the same in this process, and a folder from which tools ask it."""

    def __init__(self, folder: Path, bin_folder: Path, conversations: Path) -> None:
        self.folder = folder / "tools"
        self._bin = bin_folder
        self.here = Here(folder)
        self._model, run = trained_job(self.here.home, conversations, SFT, "supervised", NUM_STEPS)
        self.local = run_to_talk_with(self.here.home, run.run_id, step=None, tokenizer=None)
        keys = KeyRepository(open_store(str(self.here.home.api)), SystemClock())
        self._key = keys.make(project="default", name="tools", scopes=("read", "write"), lives_s=None).secret
        _, sdk = self.here.serve()
        self._address = str(sdk.base_url).removesuffix("/v1/")
        for name, content in FILE.findall(SECTION):
            self.path(name).write_text(content)

    def path(self, name: str) -> Path:
        """A file of the folder, which a tool reads or wrote."""
        found = self.folder / name
        found.parent.mkdir(parents=True, exist_ok=True)
        return found

    def put_lines(self, name: str, lines: list[dict[str, Any]]) -> None:
        self.path(name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run(self, program: str) -> str:
        """Do the page's command that begins with `program`; what it printed."""
        (command,) = [found for found in COMMAND.findall(SECTION) if f" {program} " in found]
        command = command.replace("\\\n", "").replace("http://127.0.0.1:8017", self._address)
        words = shlex.split(command.replace("sk-assay-KEY", self._key).replace("NAME", self._model))
        first = words.index(program)
        environment = dict(word.split("=", 1) for word in words[:first])
        environment |= {"PATH": f"{self._bin}:/usr/bin:/bin", "HOME": str(self.folder)}
        environment |= {"NO_PROXY": "127.0.0.1", "HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE}
        done = subprocess.run(
            [str(self._bin / program), *words[first + 1 :]],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
        return done.stdout + done.stderr

    def goes_on(self, text: str, max_tokens: int) -> str:
        """What the model goes on with, the likeliest token each time."""
        tokens, drawn = self.local.tokens_of(text), list[int]()
        while len(drawn) < max_tokens:
            with torch.inference_mode():
                logits = self.local.network(input_ids=torch.tensor([tokens + drawn])).logits
            drawn.append(int(logits[0, -1].argmax()))
            if drawn[-1] in self.local.ends:
                break
        return str(self.local.tokenizer.decode(drawn))


@pytest.fixture(scope="module")
def tools(
    tmp_path_factory: pytest.TempPathFactory,
    conversations: Path,
    requires: Callable[[str, bool, str], None],
) -> Iterator[ServedTools]:
    python = Path(python_with("peers", requires, part="peers", on_top_of_ours=True))
    found = ServedTools(tmp_path_factory.mktemp("asked"), python.parent, conversations)
    try:
        yield found
    finally:
        found.here.end()


def half_right(texts: list[str]) -> list[str]:
    """What is said at each second place, and something else at the others."""
    return [text if location % 2 else f"not {text}" for location, text in enumerate(texts)]


def ranked_here(model: LocalModel, question: str, choice: str) -> tuple[float, bool, int]:
    """Nats of a choice behind a question, whether each token of it is the likeliest, and how many they are."""
    bits, num_tokens = model.continuation_bits(question, choice)
    tokens = torch.tensor([model.tokens_of(question + choice)[-(WINDOW - 1) :]])
    with torch.inference_mode():
        most_likely = model.network(input_ids=tokens).logits[0, :-1].argmax(-1)
    is_greedy = bool((most_likely == tokens[0, 1:])[-num_tokens:].all())
    return -bits * math.log(2), is_greedy, num_tokens


def test_lm_eval_finds_the_log_likelihoods_and_texts_of_this_process(tools: ServedTools) -> None:
    output = [tools.goes_on(text, MAX_TOKENS).partition("\n")[0] for text in TEXTS]
    assert len({*output}) >= 3  # at least one of each beginning of an answer
    too_long = "once more, " * WINDOW + TEXTS[0]
    questions = [*TEXTS, *SUMS, too_long]
    choices = [[" is", f"that is {location}", f"that is {location + 1}"] for location in range(len(TEXTS))]
    choices = [[*choices[location], output[location] or " 5"] for location in range(len(TEXTS))] * 2 + [choices[0]]
    tools.put_lines(
        "ranked.jsonl",
        [
            {"question": question, "choices": item, "answer": location % 3}
            for location, (question, item) in enumerate(zip(questions, choices, strict=True))
        ],
    )
    responses = half_right(output)
    tools.put_lines(
        "written.jsonl",
        [{"question": text, "answer": response} for text, response in zip(TEXTS, responses, strict=True)],
    )

    tools.run("lm-eval")

    (found,) = tools.folder.glob("lm-eval/*/results_*.json")
    results = json.loads(found.read_text())["results"]
    assert results["written"]["exact_match,none"] == pytest.approx(len(TEXTS) // 2 / len(TEXTS))
    assert [item["resps"][0][0] for item in samples_of(tools, "written")] == output
    worst, num_correct, num_greedy = 0.0, 0, 0
    for location, sample in enumerate(samples_of(tools, "ranked")):
        expected = [ranked_here(tools.local, questions[location], choice) for choice in choices[location]]
        for (nats, is_greedy, num_tokens), ((events, is_reported_greedy),) in zip(
            expected, sample["resps"], strict=True
        ):
            worst = max(worst, abs(float(events) - nats) / num_tokens)
            assert (is_reported_greedy == "True") is is_greedy
            num_greedy += is_greedy
        num_correct += max(range(len(expected)), key=lambda choice: expected[choice][0]) == location % 3
    print(f"lm-eval: at most {worst:.1e} nats a token from ours")
    assert worst < 1e-4
    assert 0 < num_greedy < sum(map(len, choices))
    assert results["ranked"]["acc,none"] == pytest.approx(num_correct / len(questions))


def samples_of(tools: ServedTools, task: str) -> list[dict[str, Any]]:
    """What lm-eval wrote down of each row of a task, in the rows' order."""
    (found,) = tools.folder.glob(f"lm-eval/*/samples_{task}_*.jsonl")
    lines = [json.loads(line) for line in found.read_text().splitlines()]
    return sorted(lines, key=lambda line: int(line["doc_id"]))


def test_inspect_reads_the_chats_of_this_process(tools: ServedTools) -> None:
    sampling = SamplingParams(max_tokens=MAX_TOKENS)
    responses = tools.local.generate([[{"role": "user", "content": item}] for item in SUMS], sampling)
    output = [response.text for response in responses if not isinstance(response, Exception)]
    targets = half_right(output)
    tools.put_lines(
        "asked.jsonl",
        [
            {"id": location, "input": sum_, "target": target}
            for location, (sum_, target) in enumerate(zip(SUMS, targets, strict=True))
        ],
    )

    tools.run("inspect")

    (found,) = tools.folder.glob("inspect/*.json")
    log = json.loads(found.read_text())
    assert log["status"] == "success"
    samples = sorted(log["samples"], key=lambda sample: int(sample["id"]))
    assert [item["output"]["choices"][0]["message"]["content"] for item in samples] == output
    assert all(item["output"]["usage"]["output_tokens"] > 0 for item in samples)
    assert log["results"]["scores"][0]["metrics"]["mean"]["value"] == len(SUMS) // 2 / len(SUMS)


def test_oaieval_matches_the_texts_of_this_process(tools: ServedTools) -> None:
    output = [tools.goes_on(text, 16) for text in TEXTS]  # the API's own default
    samples = [{"input": text, "ideal": ideal} for text, ideal in zip(TEXTS, half_right(output), strict=True)]
    tools.put_lines("registry/data/said/samples.jsonl", samples)

    tools.run("oaieval")

    events = [json.loads(line) for line in tools.path("oaieval.jsonl").read_text().splitlines()]
    found = {event["data"]["prompt"]: event["data"]["sampled"] for event in events if event.get("type") == "sampling"}
    assert found == {text: [item] for text, item in zip(TEXTS, output, strict=True)}
    (report,) = [event["final_report"] for event in events if "final_report" in event]
    assert report["accuracy"] == len(TEXTS) // 2 / len(TEXTS)
    assert report["usage_completion_tokens"] > 0
