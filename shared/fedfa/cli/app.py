"""The command line put together, and the one place where errors become a line and an exit code."""

import json
import logging
from typing import Annotated

import typer

from fedfa import __version__
from fedfa.cli import console
from fedfa.cli.control import stop, submit
from fedfa.cli.dashboard import dashboard
from fedfa.cli.dlq import app as dlq
from fedfa.cli.doctor import doctor
from fedfa.cli.local import app as local
from fedfa.cli.observe import status, watch
from fedfa.cli.paper import paper
from fedfa.cli.results import export, report, verify
from fedfa.cli.simulate import simulate
from fedfa.errors import FedfaError
from fedfa.spec import FederationSpec

EXIT_ERROR = 2

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Fully asynchronous federated learning: submit, follow and check federations.",
    epilog="The broker and the bucket are those of FEDFA_AMQP_URL and FEDFA_S3_ENDPOINT, "
    "FEDFA_S3_BUCKET, FEDFA_S3_ACCESS_KEY, FEDFA_S3_SECRET_KEY. "
    "With nothing set up: fedfa local run examples/digits.yaml",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fedfa {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    pass


@app.command()
def schema() -> None:
    """Print the JSON schema of a spec, for editors and checks."""
    print(json.dumps(FederationSpec.model_json_schema(), indent=2))


for command in (submit, status, watch, dashboard, stop, report, export, verify):
    app.command()(command)
for tool in (simulate, paper, doctor):
    app.command()(tool)
app.add_typer(dlq, name="dlq")
app.add_typer(local, name="local")


def main() -> None:
    # Outages are told once, in the error that ends a command, not for every try.
    logging.getLogger("fedfa").addHandler(logging.NullHandler())
    try:
        app()
    except FedfaError as error:
        console.error(str(error))
        raise SystemExit(EXIT_ERROR) from None
