"""`assay serve`: OpenAI's fine-tuning API on this machine; `assay worker` does what it promises."""

from pathlib import Path

import click

from assay.base.errors import ConfigError
from assay.cli.given import given_home, python_graders_option, tell_python_graders


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8017, show_default=True, help="Port to listen on; 0 takes any that is free.")
@click.option(
    "--models",
    type=click.Path(path_type=Path),
    default=Path("models"),
    show_default=True,
    help="Folder with a file NAME.yaml for each base model.",
)
@click.option(
    "--engines",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Models that are loaded at a time; who is asked least leaves first.",
)
@click.option(
    "--engine-memory",
    type=click.FloatRange(min=0, min_open=True),
    help="GB that loaded models may have together.",
)
@click.option("--openapi", is_flag=True, help="Print the API as OpenAPI describes it, and serve nothing.")
@click.option("--judge", metavar="URL", help="Endpoint of the judge that model-graded graders ask.")
@python_graders_option
def serve(
    host: str,
    port: int,
    models: Path,
    engines: int,
    engine_memory: float | None,
    judge: str | None,
    python_graders: str | None,
    *,
    openapi: bool,
) -> None:
    """Answer OpenAI's fine-tuning API: files, jobs, events, checkpoints; and ask the models that came of it,
    at once, in batches or by evals.

    What is asked for is written to $ASSAY_HOME/api, durable before the answer leaves; 'assay worker' does it.
    The files of --models are read once: start it again for a new one.
    Clients take http://HOST:PORT/v1 as their base URL. Without keys ('assay key') it listens on this machine
    only.
    """
    if openapi:
        from assay.serving.openai.app import openapi_text

        click.echo(openapi_text(), nl=False)
        return
    tell_python_graders(python_graders)
    if not models.is_dir():
        raise ConfigError(
            f"{models}: no such folder. Make it and put a file NAME.yaml into it for each model that may be "
            "trained (docs/serve.md shows one), or name another with --models."
        )
    from assay.serving.base_models import read_base_models

    found = read_base_models(models)
    from assay.serving.server import EngineBudget, run_server
    from assay.workers.engine.forks import EngineForks

    home = given_home()
    most_bytes = None if engine_memory is None else int(engine_memory * 1e9)
    budget = EngineBudget(EngineForks(home).start, most=engines, most_bytes=most_bytes)
    run_server(
        home, found, budget, host=host, port=port, judge=judge, say=lambda text: click.echo(text, err=True)
    )
