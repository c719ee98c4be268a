"""`assay serve`: the dashboard and OpenAI's fine-tuning API on this machine; `assay serve worker` runs its jobs."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.base.errors import ConfigError
from assay.cli.command import CommandGroup
from assay.cli.parameters import current_home, log_format_option, python_graders_option, set_python_graders

if TYPE_CHECKING:
    from assay.store.home import Home

_MODULES = {
    "worker": ("assay.cli.serve.worker", "Run the jobs of the API, on this machine or a cluster."),
    "sessions": ("assay.cli.serve.sessions", "Train and sample the sessions of the Tinker API."),
    "key": ("assay.cli.serve.key", "Create, list and revoke API keys."),
}

_DEFAULT_MODELS = Path("models")

_SECTIONS = {
    "Models": ("engines", "engine_memory", "judge", "python_graders"),
    "Output": ("log_format", "openapi"),
}


@click.group(cls=CommandGroup, modules=_MODULES, sections=_SECTIONS, is_brief=True, is_command=True)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", default=8017, help="Port to listen on; 0 picks a free one.")
@click.option("--open", "is_opened", is_flag=True, help="Open the dashboard in a browser.")
@click.option(
    "--models",
    type=click.Path(path_type=Path),
    help="Folder with a NAME.yaml per base model.  [default: models]",
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
@log_format_option
def serve(
    host: str,
    port: int,
    models: Path | None,
    engines: int,
    engine_memory: float | None,
    judge: str | None,
    python_graders: str | None,
    *,
    is_opened: bool,
    openapi: bool,
) -> None:
    """Serve the dashboard at http://HOST:PORT, and OpenAI's API for fine-tuning, inference, batches and evals at /v1.

    'assay serve worker' and 'assay serve sessions' execute what this API and the Tinker API accept. Without API keys it
    listens on this machine only.
    """
    if openapi:
        from assay.serving.openai.app import openapi_text

        click.echo(openapi_text(), nl=False)
        return
    set_python_graders(python_graders)
    if models is not None and not models.is_dir():
        raise ConfigError(
            f"{models}: no such folder. Create it with a file NAME.yaml for each model that may be "
            "trained (docs/serve.md has an example), or name another folder with --models."
        )
    folder, found = models or _DEFAULT_MODELS, {}
    if folder.is_dir():
        from assay.serving.base_models import read_base_models

        found = dict(read_base_models(folder))
    from assay.serving.server import run_server
    from assay.workers.engine.forks import EngineForks

    home = current_home()

    def notify(text: str) -> None:
        click.echo(text, err=True)
        if is_opened and (address := re.search(r"dashboard (\S+)", text)) is not None:
            click.launch(address[1])

    run_server(
        home,
        found,
        EngineForks(home).start,
        max_models=engines,
        max_bytes=None if engine_memory is None else int(engine_memory * 1e9),
        host=host,
        port=port,
        judge=judge,
        add_pages=lambda api, state: _with_pages(home, api, state),
        notify=notify,
    )


def _with_pages(home: "Home", api: Any, state: Any) -> Any:
    """Return the API with the dashboard and the operators' addresses, and what ends the dashboard's event streams."""
    from assay.dashboard.app import with_pages
    from assay.dashboard.dashboard import Dashboard
    from assay.serving.http.operations import Operations, readiness_of

    dashboard = Dashboard.of(home, state)
    watch, ledger = dashboard.watch, dashboard.open_ledger

    def make_collectors() -> Any:
        from assay.reporting.views.home_metrics import HomeMetrics

        return [HomeMetrics(home, state, ledger, lambda: watch.num_streams)]

    app = Operations(with_pages(api, dashboard), readiness_of(home, ledger), state.keys, make_collectors)
    return app, watch.stop
