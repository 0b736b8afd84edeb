"""`fedfa dlq`: messages that no service could decide, which wait for a person in `fedfa.dead`.

A letter leaves the queue only when it is dropped, or after the broker has confirmed its replay.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfa import connections, messages, topology
from fedfa.cli import console, views
from fedfa.cli.observe import Json
from fedfa.errors import InvalidInput, InvalidMessage
from fedfa.messages import AnyMessage
from fedfa.topology import DEAD_QUEUE, Route

if TYPE_CHECKING:
    from fedfa.broker import Letter

REPLAY_SECONDS = 10.0  # for the confirm of one letter
SHOWN_BYTES = 256
ALL = "all"
EXIT_LEFT = 1

app = typer.Typer(
    no_args_is_help=True, help="Look at messages that no service could decide, and settle them."
)
Number = Annotated[
    int, typer.Argument(metavar="N", min=1, help="as `fedfa dlq list` counts", show_default=False)
]
Which = Annotated[
    str,
    typer.Argument(
        metavar="N|all", help="one, as `fedfa dlq list` counts, or all", show_default=False
    ),
]


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Show every dead letter in a line, the oldest first."""
    with _letters() as letters:
        now = time.time()
        if as_json:
            console.print_json([_brief(n, each, now) for n, each in enumerate(letters, 1)])
            return
        for number, letter in enumerate(letters, 1):
            console.say(_line(_brief(number, letter, now)))
        if not letters:
            console.say("no dead letters")


@app.command()
def show(number: Number, as_json: Json = False) -> None:
    """Show one dead letter with all its fields."""
    with _letters() as letters:
        _, letter = _chosen(letters, str(number))[0]
        value = _brief(number, letter, time.time()) | _content(letter)
    if as_json:
        console.print_json(value)
    else:
        for name, field in value.items():
            console.say(f"{name}: {field}")


@app.command()
def replay(which: Which) -> None:
    """Send dead letters again to where they belong, once what they failed for is mended.

    The services decide each message only once, however often it comes. With `all`, ends with 1 if
    some cannot be replayed; those stay.
    """
    from fedfa.broker import Publisher

    num_left = 0
    with _letters() as letters:
        chosen = _chosen(letters, which)
        publisher = Publisher(connections.broker_settings(), name="fedfa-cli")
        try:
            for number, letter in chosen:
                try:
                    route = _route(number, letter)
                except InvalidInput as error:
                    if which != ALL:
                        raise
                    console.warn(str(error))
                    num_left += 1
                    continue
                publisher.publish(letter.body, route, timeout_seconds=REPLAY_SECONDS)
                letter.ack()
                console.say(f"replayed {number}: {_name(letter)} to {route.exchange}")
        finally:
            publisher.close(flush_seconds=0)
    if num_left:
        raise typer.Exit(EXIT_LEFT)


@app.command()
def drop(which: Which) -> None:
    """Delete dead letters for good."""
    with _letters() as letters:
        for number, letter in _chosen(letters, which):
            letter.ack()
            console.say(f"dropped {number}: {_name(letter)}, {letter.reason}")


@contextmanager
def _letters() -> "Iterator[list[Letter]]":
    """The queue's letters, which nobody else sees meanwhile."""
    from fedfa.broker import MAX_LETTERS, opened  # pika is slow to import

    with opened(connections.broker_settings(), DEAD_QUEUE.name) as letters:
        if len(letters) == MAX_LETTERS:
            console.warn(f"only the oldest {MAX_LETTERS} are read; there may be more behind them")
        yield letters


def _chosen(letters: "list[Letter]", which: str) -> "list[tuple[int, Letter]]":
    numbered = list(enumerate(letters, 1))
    if which == ALL:
        return numbered
    chosen = [(number, letter) for number, letter in numbered if str(number) == which]
    if not chosen:
        raise InvalidInput(f"{which}: no such dead letter, there are {len(letters)}")
    return chosen


def _decoded(letter: "Letter") -> AnyMessage | None:
    try:
        return messages.decode(letter.body)
    except InvalidMessage:
        return None


def _name(letter: "Letter") -> str:
    message = _decoded(letter)
    return "undecodable" if message is None else message.kind


def _route(number: int, letter: "Letter") -> Route:
    try:
        message = messages.decode(letter.body)
    except InvalidMessage as error:
        raise InvalidInput(f"{number} cannot be replayed, nobody can read it: {error}") from error
    route = topology.home_of(message)
    if route is None:
        raise InvalidInput(
            f"{number} is not replayed: the scheduler hands out {message.kind} again by itself; "
            f"drop it with `fedfa dlq drop {number}`"
        )
    return route


def _brief(number: int, letter: "Letter", now: float) -> dict[str, Any]:
    message = _decoded(letter)
    return {
        "number": number,
        "age_seconds": None if letter.died_at is None else round(max(0.0, now - letter.died_at)),
        "kind": None if message is None else message.kind,
        "federation": getattr(message, "federation", None),
        "reason": letter.reason,
    }


def _line(brief: dict[str, Any]) -> str:
    age = views.duration(brief["age_seconds"])
    kind = brief["kind"] or "undecodable"
    federation = brief["federation"] or "-"
    return f"{brief['number']:>4}  {age:>6}  {kind:<15} {federation}  {brief['reason']}"


def _content(letter: "Letter") -> dict[str, Any]:
    """What it says; of one that nobody can read, how it begins."""
    message = _decoded(letter)
    if message is not None:
        return message.model_dump(mode="json", by_alias=True)
    return {"size_bytes": len(letter.body), "starts_with_hex": letter.body[:SHOWN_BYTES].hex()}
