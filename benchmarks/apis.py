"""What training APIs make of lost, repeated and late messages and of kills, under `assay check api`.

    .venv/bin/python benchmarks/apis.py                  # all servers, two loops at the same time: half an hour
    .venv/bin/python benchmarks/apis.py --only hatchery
    .venv/bin/python benchmarks/apis.py --write          # and write the table into docs/apis.md
    .venv/bin/python benchmarks/apis.py --results FILE   # keep what has been checked, and go on from there

Each server is a package that pip installs (benchmarks/api_servers/NAME.txt) and a few lines that start it (NAME.sh).
All run on the CPU, with one model of two layers, behind the newest version of the SDK that they serve.
"""

import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

import torch
import yaml
from transformers import Qwen3Config, Qwen3ForCausalLM

from assay.data.dataset.tokens import train_tokenizer
from harness import CHECKOUT, options_of

SCRIPTS = CHECKOUT / "benchmarks" / "api_servers"
PAGE = CHECKOUT / "docs" / "apis.md"
BEGIN, END = "<!-- benchmarks/apis.py writes from here -->\n", "<!-- to here -->\n"
KINDS = ("before", "within", "after", "doubled", "delayed", "kill-during", "kill-after")
START_S = 300.0
LOOP_TIMEOUT_S = 120.0
"""Of loops that take one to thirty seconds."""
MARKS = ("<|im_start|>", "<|im_end|>")


class ApiServer(NamedTuple):
    """A server of a training API."""

    package: str
    is_path: bool = True
    """Its base model is named by the folder's path."""
    loops: tuple[str, ...] = ("sft", "rl", "dpo")


SERVERS = {
    "hatchery": ApiServer("hatchery-core"),
    "skyrl-tx": ApiServer("skyrl-tx"),
    "assay": ApiServer("assay", is_path=False, loops=("sft", "rl", "dpo", "jobs")),
}


def write_models(folder: Path) -> None:
    """Write a model of random weights that transformers 4 and 5 read, and what assay wants to know of it."""
    model = folder / "qwen"
    model.mkdir(parents=True)
    tokenizer = train_tokenizer(["one plus one is two"], vocab_size=300, special=MARKS)
    tokenizer.save(str(model / "tokenizer.json"))
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": MARKS[1], "pad_token": "[PAD]"}
    (model / "tokenizer_config.json").write_text(json.dumps(words))
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    config = Qwen3Config(
        **sizes,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=tokenizer.token_to_id(MARKS[1]),
        tie_word_embeddings=False,
    )
    Qwen3ForCausalLM(config).save_pretrained(model)
    saved = json.loads((model / "config.json").read_text())  # whose older readers know the base of RoPE by this name
    (model / "config.json").write_text(json.dumps({"rope_theta": saved["rope_parameters"]["rope_theta"], **saved}))
    method = {"type": "sft", "train_on": "spans", "model": {"type": "pretrained", "path": "qwen"}}
    recipe = {"loader": {"lanes": 4, "global_batch_size": 16, "window_rows": 16, "threads": 1}, "method": method}
    served = {
        "tokenizer": "qwen",
        "chat_template": "chatml",
        "methods": {"supervised": {"recipe": recipe, "max_tokens": 96}},
    }
    (folder / "qwen.yaml").write_text(yaml.safe_dump(served))


def python_of(name: str) -> str:
    """Return the Python of a server's environment, which is made if there is none."""
    if name == "assay":
        return sys.executable
    environment = f".venv-api-{name}"
    subprocess.run(["make", "--silent", f"{environment}/.installed"], cwd=CHECKOUT, check=True)
    return str(CHECKOUT / environment / "bin" / "python")


def check(name: str, python: str, loop: str, kinds: Sequence[str]) -> dict[str, Any]:
    """Return what `assay check api` says of a loop on a new server, or the sentence with which it could not.

    A loop leaves its models behind, and hatchery keeps a hundred at most.
    """
    with tempfile.TemporaryDirectory(prefix=name) as folder:
        url, base = f"http://127.0.0.1:{free_port()}", Path(folder) / "models" / "qwen"
        write_models(base.parent)
        start = ["bash", str(SCRIPTS / "start.sh"), name, python, folder]
        with_port = [*start, url.rpartition(":")[2]]
        try:
            subprocess.run(with_port, check=True)
            _wait_for(url)
            options = [f"--base={base if SERVERS[name].is_path else base.name}", "--key=tml-any", f"--loop={loop}"]
            options += [f"--timeout={LOOP_TIMEOUT_S}"]
            options += [f"--kill={' '.join(with_port)}", *(f"--fault={kind}" for kind in kinds), "--json"]
            command = [python, "-W", "ignore", "-m", "assay", "check", "api", url, *options]
            with (Path(folder) / "check.log").open("w+") as log:
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log)
                log.seek(0)
                error = " ".join(log.read().partition("error: ")[2].split())[:300]
            return {"loop": loop, **(json.loads(done.stdout) if done.stdout else {"error": error})}
        finally:
            subprocess.run(start, check=True)


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(url: str) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        try:
            urlopen(url, timeout=10).close()
        except HTTPError:
            return
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise SystemExit(f"{url} did not start within {START_S:.0f} s")


def versions_of(name: str, python: str) -> tuple[str, str]:
    """Return the versions of a server and of the SDK before it."""
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    done = subprocess.run(
        [python, "-c", code, SERVERS[name].package, "tinker"], capture_output=True, text=True, check=True
    )
    server, sdk = done.stdout.split()
    return server.partition("+")[0], sdk  # which commit was installed says nothing of the checkout that runs


def markdown(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a row for each loop of a server, and what the client saw where a fault was not held."""
    lines = [f"| server | version | SDK | loop | {' | '.join(KINDS)} |", f"|---|---|---|---|{'---|' * len(KINDS)}"]
    seen = []
    for name, of_server in found.items():
        for checked in of_server["loops"]:
            head = f"| {SERVERS[name].package} | {of_server['version']} | {of_server['sdk']} | {checked['loop']} |"
            if "error" in checked:
                lines.append(f"{head} {'not judged | ' * len(KINDS)}".rstrip())
                seen.append(f"- {name}, {checked['loop']}: {checked['error']}")
                continue
            lines.append(f"{head} {' | '.join(_cell(checked['faults'], kind) for kind in KINDS)} |")
            failed = [fault for fault in checked["faults"] if fault["outcome"] not in ("held", "not tried")]
            seen += [
                f"- {name}, {checked['loop']} {one['request']}, {one['fault']}: {one['outcome']}. {_first_words(one)}"
                for one in failed
            ]
            seen += [f"- {name}, {limit}" for limit in checked["not_tried"] if "between undisturbed loops" in limit]
    return "\n".join([*lines, "", *seen]) + "\n"


def _first_words(fault: dict[str, str]) -> str:
    """Return what the client saw in a line, without a server's stack trace and the ids of this check."""
    text = " ".join(re.split("Traceback| with status", fault["seen"])[0].split())
    return re.sub(r"'?\b(request_id|self.request_id|sessions/mdl_|model_|fut_)[=\w/.]*'?", "...", text)[:160].strip()


def _cell(faults: list[dict[str, str]], kind: str) -> str:
    outcomes = [fault["outcome"] for fault in faults if fault["fault"] == kind and fault["outcome"] != "not tried"]
    text = f"{outcomes.count('held')} of {len(outcomes)}" if outcomes else ""
    return text if outcomes.count("held") == len(outcomes) else f"**{text}**"


def main() -> None:
    """Check the chosen servers, print a table, and end with one JSON line."""
    parser = options_of(__doc__)
    parser.add_argument("--only", action="append", choices=[*SERVERS], default=[])
    parser.add_argument("--loop", action="append", default=[])
    parser.add_argument("--fault", action="append", choices=KINDS, default=[])
    parser.add_argument("--jobs", type=int, default=2, help="loops at the same time")
    parser.add_argument("--write", action="store_true", help="write the table into docs/apis.md")
    parser.add_argument("--results", type=Path, help="file of a line per checked loop, which is not checked again")
    options = parser.parse_args()
    results: Path | None = options.results
    known = [json.loads(line) for line in results.read_text().splitlines()] if results and results.exists() else []
    names: list[str] = options.only or [*SERVERS]
    pythons = {name: python_of(name) for name in names}

    def checked(name: str, loop: str) -> dict[str, Any]:
        earlier = [one["found"] for one in known if (one["server"], one["found"]["loop"]) == (name, loop)]
        if earlier:
            return dict(earlier[0])
        now = check(name, pythons[name], loop, options.fault or KINDS)
        line = json.dumps({"server": name, "found": now})
        print(line, file=sys.stderr, flush=True)
        if results:
            with results.open("a") as file:
                file.write(f"{line}\n")
        return now

    loops = {name: [loop for loop in SERVERS[name].loops if loop in (options.loop or [loop])] for name in names}
    with ThreadPoolExecutor(options.jobs) as pool:
        checks = {name: [pool.submit(checked, name, loop) for loop in loops[name]] for name in names}
    found = {}
    for name, of_server in checks.items():
        version, sdk = versions_of(name, pythons[name])
        found[name] = {"version": version, "sdk": sdk, "loops": [one.result() for one in of_server]}
    table = markdown(found)
    print(table)
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
    print(json.dumps({"benchmark": "apis", "servers": found}))


if __name__ == "__main__":
    main()
