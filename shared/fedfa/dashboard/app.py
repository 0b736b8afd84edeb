"""The dashboard as an ASGI application: the page, its JSON, its live events, start and stop.

Whatever else a process serves over HTTP (health, metrics) is passed in as routes and served
beside it: one process, one server.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedfa import keys, manifests
from fedfa.dashboard import control as controls
from fedfa.dashboard.control import Control
from fedfa.dashboard.feed import Feed, Shown
from fedfa.dashboard.rows import JsonRow, page_of
from fedfa.dashboard.view import spec_text
from fedfa.errors import FedfaError, InvalidInput, NotFound, Unavailable
from fedfa.observability import Route as JsonRoute
from fedfa.submission import check_id, read_submission

STATIC = Path(__file__).parent / "static"
LOOK_SECONDS = 0.2  # between two looks at whether there is something new to send
QUIET_SECONDS = 15.0  # then a comment is sent, so that nobody in between drops the connection
FIRST_SECONDS = 10.0  # how long a request waits for the first look at a federation
MOST_BODY_BYTES = 256 * 1024
PAGE_MANIFESTS = 150  # of an older page of the log
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def application(
    feed: Feed, *, routes: Mapping[str, JsonRoute] | None = None, control: Control | None = None
) -> Starlette:
    """routes: path -> what it answers. control: None shows, and changes nothing."""
    api = _Api(feed, control)
    others = dict(routes or {})

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        value: Any = {"error": error.detail}
        if error.status_code == 404:
            value["paths"] = ["/", *sorted(others)]
        return JSONResponse(value, error.status_code, error.headers)

    one = "/api/federations/{federation}"
    return Starlette(
        routes=[
            Route("/", _page),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/api/federations", api.overview, methods=["GET"]),
            Route("/api/federations", api.start, methods=["POST"]),
            Route("/api/events", api.overview_events),
            Route("/api/access", api.access),
            Route(one, api.federation),
            Route(f"{one}/events", api.federation_events),
            Route(f"{one}/decisions", api.decisions),
            Route(f"{one}/manifests/{{n:int}}", api.manifest),
            Route(f"{one}/spec", api.spec),
            Route(f"{one}/stop", api.stop, methods=["POST"]),
            Route("/metrics", _metrics),
            *(Route(path, _json_route(answer)) for path, answer in others.items()),
        ],
        middleware=[Middleware(_WithHeaders), Middleware(GZipMiddleware, minimum_size=2048)],
        exception_handlers={HTTPException: refused, FedfaError: _failed},
    )


class _Api:
    def __init__(self, feed: Feed, control: Control | None) -> None:
        self._feed = feed
        self._control = control

    # -- what is shown --------------------------------------------------------------------------

    async def overview(self, request: Request) -> Response:
        return await self._first(self._feed.overview)

    async def federation(self, request: Request) -> Response:
        name = check_id(request.path_params["federation"])
        return await self._first(lambda: self._feed.federation(name))

    async def overview_events(self, request: Request) -> Response:
        return _events(self._feed.overview)

    async def federation_events(self, request: Request) -> Response:
        name = check_id(request.path_params["federation"])
        return _events(lambda: self._feed.federation(name))

    def decisions(self, request: Request) -> Response:
        """The rows of the manifests before `before`, newest first."""
        name = check_id(request.path_params["federation"])
        text = request.query_params.get("before", "")
        if not text.isdecimal() or len(text) > 18:
            raise InvalidInput(f"before: {text!r:.40} is no manifest's number")
        before = int(text)
        numbers = range(max(manifests.FIRST, before - PAGE_MANIFESTS), before)
        created_at = read_submission(self._feed.store, name).created_at
        rows = page_of(self._feed.store, name, created_at, numbers)
        return JSONResponse({"rows": rows, "first": numbers.start})

    def manifest(self, request: Request) -> Response:
        """A manifest as it lies in the bucket."""
        name = check_id(request.path_params["federation"])
        n = request.path_params["n"]
        if n >= 10**20:
            raise InvalidInput(f"manifest: {n} has more than 20 digits")
        body = self._feed.store.get(keys.manifest(name, n))
        return Response(body, media_type="application/json")

    def spec(self, request: Request) -> Response:
        name = check_id(request.path_params["federation"])
        spec = read_submission(self._feed.store, name).spec
        return Response(spec_text(spec), media_type="text/plain")

    async def _first(self, shown_now: Callable[[], Shown]) -> Response:
        deadline = time.monotonic() + FIRST_SECONDS
        while not (shown := shown_now()).revision and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_SECONDS / 10)
        if shown.is_missing:
            return JSONResponse({"error": shown.trouble}, 404)
        if not shown.body:
            return JSONResponse({"error": shown.trouble or "still reading; ask again"}, 503)
        return Response(shown.body, media_type="application/json")

    # -- what changes something -----------------------------------------------------------------

    async def access(self, request: Request) -> Response:
        """Whether anything can be changed from here, and by whoever asks."""
        if self._control is None:
            return JSONResponse({"can_control": False, "is_allowed": False})
        allowed = self._control.allows(request.headers.get("authorization"))
        return JSONResponse({"can_control": True, "is_allowed": allowed})

    async def start(self, request: Request) -> Response:
        control = self._allowed(request)
        body = await _body(request)
        answer = await run_in_threadpool(controls.start, self._feed.store, control, body)
        self._feed.look_again()
        return JSONResponse(answer, 201)

    async def stop(self, request: Request) -> Response:
        control = self._allowed(request)
        body, name = await _body(request), request.path_params["federation"]
        answer = await run_in_threadpool(controls.stop, self._feed.store, control, name, body)
        self._feed.look_again()
        return JSONResponse(answer, 202)

    def _allowed(self, request: Request) -> Control:
        if self._control is None:
            raise HTTPException(403, "read-only: the server was given no FEDFA_DASHBOARD_TOKEN")
        if not self._control.allows(request.headers.get("authorization")):
            raise HTTPException(
                401, "the token is missing or wrong", {"WWW-Authenticate": "Bearer"}
            )
        return self._control


def _events(shown_now: Callable[[], Shown]) -> Response:
    """Server-sent events: `view` with the whole view, `rows` with new decisions, `trouble`."""

    async def stream() -> AsyncIterator[bytes]:
        revision, newest, body = 0, -1, b""
        sent_at = time.monotonic()
        yield b"retry: 1000\n\n"
        while True:
            shown = shown_now()
            if shown.revision != revision:
                revision, sent_at = shown.revision, time.monotonic()
                if shown.body and shown.body != body:
                    body = shown.body
                    yield b"event: view\ndata: " + body + b"\n\n"
                rows = _newer(shown.rows, newest)
                if rows:
                    newest = rows[-1]["n"]
                    yield b"event: rows\ndata: " + json.dumps(rows).encode() + b"\n\n"
                trouble = {"trouble": shown.trouble, "is_missing": shown.is_missing}
                yield b"event: trouble\ndata: " + json.dumps(trouble).encode() + b"\n\n"
            elif time.monotonic() - sent_at > QUIET_SECONDS:
                sent_at = time.monotonic()
                yield b": still here\n\n"
            await asyncio.sleep(LOOK_SECONDS)

    return StreamingResponse(
        stream(), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
    )


def _newer(rows: tuple[JsonRow, ...], newest: int) -> list[JsonRow]:
    """The rows above manifest `newest`; all where the log is another one, which begins anew."""
    is_another = bool(rows) and rows[-1]["n"] < newest
    return [row for row in rows if is_another or row["n"] > newest]


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BODY_BYTES:
            raise HTTPException(413, f"more than {MOST_BODY_BYTES} bytes")
    return body


async def _page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html")


def _metrics(request: Request) -> Response:
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(REGISTRY), headers={"content-type": content_type})


def _json_route(answer: JsonRoute) -> Callable[[Request], Any]:
    async def route(request: Request) -> Response:
        status, value = answer()
        return JSONResponse(value, status)

    return route


async def _failed(request: Request, error: Exception) -> Response:
    status = 400 if isinstance(error, InvalidInput) else 500
    if isinstance(error, NotFound):
        status = 404
    elif isinstance(error, Unavailable):
        status = 503
    return JSONResponse({"error": str(error)}, status)


class _WithHeaders:
    """Adds the same headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *self._headers]}
            await send(message)

        await self._app(scope, receive, send_with_headers)
