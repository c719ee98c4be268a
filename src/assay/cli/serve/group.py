"""`assay serve`: OpenAI's fine-tuning API on this machine; `assay serve worker` runs its jobs."""

from pathlib import Path

import click

from assay.base.errors import ConfigError
from assay.cli.command import CommandGroup
from assay.cli.parameters import current_home, python_graders_option, set_python_graders

_MODULES = {
    "worker": ("assay.cli.serve.worker", "Run the jobs of the API, on this machine or a cluster."),
    "key": ("assay.cli.serve.key", "Create, list and revoke API keys."),
}


_SECTIONS = {
    "Models": ("engines", "engine_memory", "judge", "python_graders"),
    "Reference": ("openapi",),
}


@click.group(cls=CommandGroup, modules=_MODULES, sections=_SECTIONS, is_brief=True, is_command=True)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", default=8017, help="Port to listen on; 0 picks a free one.")
@click.option(
    "--models",
    type=click.Path(path_type=Path),
    default=Path("models"),
    help="Folder with a NAME.yaml for each base model.",
)
@click.option(
    "--engines",
    type=click.IntRange(min=1),
    default=2,
    help="Maximum number of loaded models; the least used one is unloaded first.",
)
@click.option(
    "--engine-memory", type=click.FloatRange(min=0, min_open=True), help="Memory limit of all loaded models, in GB."
)
@click.option("--openapi", is_flag=True, help="Print the OpenAPI description and exit.")
@click.option("--judge", metavar="URL", help="Endpoint of the judge model that graders call.")
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
    """Serve OpenAI's API for fine-tuning, inference, batches and evals at http://HOST:PORT/v1.

    Requests are durable in $ASSAY_HOME/api before they are answered; 'assay serve worker' executes them. Without
    API keys ('assay serve key') it listens on this machine only.
    """
    if openapi:
        from assay.serving.openai.app import openapi_text

        click.echo(openapi_text(), nl=False)
        return
    set_python_graders(python_graders)
    if not models.is_dir():
        raise ConfigError(
            f"{models}: no such folder. Create it with a file NAME.yaml for each model that may be "
            "trained (docs/serve.md has an example), or name another folder with --models."
        )
    from assay.serving.base_models import read_base_models

    found = read_base_models(models)
    from assay.serving.server import run_server
    from assay.workers.engine.forks import EngineForks

    home = current_home()
    run_server(
        home,
        found,
        EngineForks(home).start,
        max_models=engines,
        max_bytes=None if engine_memory is None else int(engine_memory * 1e9),
        host=host,
        port=port,
        judge=judge,
        notify=lambda text: click.echo(text, err=True),
    )
