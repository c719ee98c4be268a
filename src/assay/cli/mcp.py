"""`assay mcp`: facts of the home for agents, by the Model Context Protocol."""

import click

from assay.base.errors import ConfigError
from assay.cli.parameters import current_home, print_status


@click.command()
@click.option("--http", is_flag=True, help="Serve over HTTP instead of stdio, with the API keys of 'assay serve'.")
@click.option("--host", default="127.0.0.1", help="With --http: address to listen on.")
@click.option("--port", default=8018, help="With --http: port to listen on; 0 picks a free one.")
def mcp(http: bool, host: str, port: int) -> None:
    """Serve the facts of this home to agents, by the Model Context Protocol; its tools only read (docs/agents.md)."""
    from assay.agents.server import make_server, serve_http

    home = current_home()
    if not home.folder.is_dir():
        raise ConfigError(f"{home.folder}: no such folder. Set $ASSAY_HOME to the folder of the runs.")
    if http:
        serve_http(home, host, port, print_status)
    else:
        make_server(home).run("stdio")
