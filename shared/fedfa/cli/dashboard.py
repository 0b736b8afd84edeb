"""`fedfa dashboard`: the page over a bucket or a folder, for runs that go on or ended."""

import signal
import threading
import webbrowser
from collections.abc import Callable
from typing import Annotated

import typer

from fedfa import connections
from fedfa.cli import EXIT_INTERRUPTED, console, control
from fedfa.cli.control import Folder
from fedfa.errors import Misconfigured
from fedfa.spec import Submission
from fedfa.store import DirectoryStore, from_settings

READERS = 16

Open = Annotated[bool, typer.Option("--open", help="open it in a browser")]


def dashboard(
    bucket: Annotated[
        str | None,
        typer.Argument(metavar="[BUCKET]", help="FEDFA_S3_BUCKET by default", show_default=False),
    ] = None,
    folder: Folder = None,
    host: Annotated[str, typer.Option(help="0.0.0.0: from other machines too")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one")] = 0,
    open_browser: Open = False,
) -> None:
    """Show federations in a browser, live, from the bucket alone. Ends at Ctrl-C.

    With FEDFA_DASHBOARD_TOKEN set, whoever knows it may also start and stop federations there.
    """
    from fedfa import dashboard as page  # imports starlette and uvicorn

    if bucket is not None and folder is not None:
        raise Misconfigured("BUCKET and --in: give one of the two")
    settings = connections.store_settings(**({"bucket": bucket} if bucket else {}))
    store = from_settings(settings) if folder is None else connections.store(folder)
    token = connections.read(page.DashboardSettings).token
    is_shown_only = token is None or isinstance(store, DirectoryStore)
    feed = page.Feed(store, readers=READERS, share=1.0)
    try:
        allowed = None if token is None or is_shown_only else page.Control(token, _announcer())
        url = f"http://{host}:{page.serve(page.application(feed, control=allowed), host, port)}/"
        console.say(f"dashboard of {store.name}: {url}", "bold")
        if is_shown_only:
            console.say("it only shows; start and stop need FEDFA_DASHBOARD_TOKEN and a bucket")
        if open_browser:
            webbrowser.open(url)
        _wait()
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        feed.close()


def _announcer() -> Callable[[Submission], None]:
    broker = connections.broker_settings()
    return lambda submitted: control.tell_scheduler(submitted, broker, "changed in the dashboard")


def _wait() -> None:
    """For ever; Ctrl-C and SIGTERM end it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Event().wait()
