"""`fedfa doctor`: does this machine reach a broker and a bucket that FedFa can live on?"""

from dataclasses import asdict
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from fedfa import connections
from fedfa.cli import console
from fedfa.cli.observe import Json

STYLES = {"ok": "green", "warn": "yellow", "bad": "bold red"}
EXIT_BAD = 1


def doctor(
    pool: Annotated[
        list[str] | None,
        typer.Option(help="a pool whose queue to check; may be repeated", show_default="default"),
    ] = None,
    policy: Annotated[
        bool, typer.Option("--policy", help="only print the command that sets the broker's policy")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check broker, bucket, clock, proxy and tasks, and say what to change.

    Queues that do not exist yet are declared. Ends with 1 if FedFa would not work.
    """
    from fedfa import doctor as checks  # imports boto3 and pika

    broker_settings = connections.broker_settings()
    if policy:
        url = urlsplit(broker_settings.url.get_secret_value())
        console.say(checks.policy_command(unquote(url.path[1:]) or "/"))
        return
    is_bad = False
    found = []
    for finding in checks.examine(
        broker_settings, connections.store_settings(), pool or ["default"]
    ):
        is_bad = is_bad or finding.status == "bad"
        found.append(asdict(finding))
        if not as_json:
            console.say(
                f"{finding.status:<5} {finding.what}: {finding.text}", STYLES[finding.status]
            )
    if as_json:
        console.print_json(found)
    if is_bad:
        raise typer.Exit(EXIT_BAD)
