"""`assay eval chat MODEL`: talk with the language model of a run or of a folder."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.errors import ConfigError
from assay.base.installed import PREFIX
from assay.base.units import number_of
from assay.cli.command import Command
from assay.cli.parameters import PATH, current_home, run_and_step, seed_option

if TYPE_CHECKING:
    from assay.inference.local.local_model import LocalModel
    from assay.inference.protocol import Completion
    from assay.workflows.export.chat import Conversation

MAX_COMPLETION_TOKENS = 256
"""Default limit of a completion in tokens; half of the context window if that is less."""
RESTART_COMMAND = "/new"


_SECTIONS = {
    "Sampling": (
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "stop",
        "seed",
    ),
}


@click.command(cls=Command, sections=_SECTIONS)
@click.argument("model")
@click.option("--prompt", help="Send this prompt, print the completion and exit; '-' reads the prompt from stdin.")
@click.option("--system", help="System message; needs a chat template.")
@click.option(
    "--step", type=click.IntRange(min=0), help="Step of the commit to use; by default the last one. Also RUN@STEP."
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    help="Longest completion in tokens; by default 256, or half of the context window if that is less.",
)
@click.option("--temperature", type=click.FloatRange(min=0), default=1.0, help="Sampling temperature; 0 is greedy.")
@click.option(
    "--top-p",
    type=click.FloatRange(min=0, min_open=True, max=1),
    default=1.0,
    help="Nucleus sampling: keep the most probable tokens up to this total probability.",
)
@click.option("--top-k", type=click.IntRange(min=1), help="Sample from this many most probable tokens only.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End the completion before this text. May be repeated.")
@seed_option("the sampling: the same conversation and seed give the same completion")
@click.option("--tokenizer", type=PATH, help="Tokenizer of a run whose dataset does not contain it.")
def chat(
    model: str,
    prompt: str | None,
    system: str | None,
    step: int | None,
    max_tokens: int | None,
    temperature: float,
    top_p: float,
    top_k: int | None,
    stop: tuple[str, ...],
    seed: int,
    tokenizer: Path | None,
) -> None:
    """Talk with MODEL: a RUN of SFT, DPO or GRPO, RUN@STEP for one of its commits, or a model folder.

    If the dataset or the folder has a chat template, this is a conversation. Otherwise the model continues each
    text by itself.

    In a terminal, type; /new starts over, Ctrl-D ends. In a script, --prompt or stdin is sent once, and only
    the completion is written to stdout.
    """
    is_interactive = prompt is None and sys.stdin.isatty()
    click.echo(f"loading {model} ...", err=True)
    local_model = _load_model(model, step, tokenizer)
    single_prompt = "" if is_interactive else _read_prompt(prompt)
    from assay.inference.protocol import SamplingParams
    from assay.workflows.export.chat import Conversation

    sampling = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        max_tokens=max_tokens or max(1, min(MAX_COMPLETION_TOKENS, local_model.window_tokens // 2)),
        seed=seed,
        stop=stop,
    )
    conversation = Conversation(local_model, sampling, system=system)
    if not is_interactive:
        _print_completion(conversation, single_prompt)
        click.echo()
        return
    mode = "a conversation" if local_model.has_template else "no chat template: the model continues your text"
    click.echo(f"{model}, {local_model.name}; {mode}. {RESTART_COMMAND} starts over, Ctrl-D ends.", err=True)
    while (text := _read_line()) is not None:
        if text.strip() == RESTART_COMMAND:
            conversation.begin_again()
        elif text.strip():
            completion = _print_completion(conversation, text)
            click.echo("" if completion.finish_reason == "stop" else " …")


def _print_completion(conversation: "Conversation", text: str) -> "Completion":
    completion = conversation.reply(text, lambda piece: click.echo(piece, nl=False))
    if completion.prompt_tokens_cut:
        tokens = number_of(completion.prompt_tokens_cut, "token")
        message = f"the prompt exceeds the context window: its first {tokens} were cut"
        click.secho(message, err=True, fg="yellow")
    return completion


def _read_prompt(prompt: str | None) -> str:
    text = sys.stdin.read() if prompt in (None, "-") else str(prompt)
    if not text.strip():
        raise ConfigError(
            "there is no prompt: stdin is empty and not a terminal. Give --prompt TEXT, or pipe a text in."
        )
    return text


def _read_line() -> str | None:
    try:
        return input("> ")
    except EOFError:
        click.echo(err=True)
        return None


def _load_model(name: str, step: int | None, tokenizer: Path | None) -> "LocalModel":
    home = current_home()
    is_folder = Path(name).is_dir() and ("/" in name or not home.has_run(name))
    if is_folder or name.startswith(PREFIX):
        if tokenizer is not None or step is not None:
            which = "--tokenizer" if tokenizer is not None else "--step"
            raise ConfigError(f"{which}: {name} is a folder with one model and its tokenizer. Leave the option out.")
        from assay.workflows.export.chat import folder_to_talk_with

        return folder_to_talk_with(name)
    run_id, named_step = run_and_step(home, name)
    from assay.workflows.export.chat import run_to_talk_with

    return run_to_talk_with(home, run_id, step=named_step if step is None else step, tokenizer=tokenizer)
