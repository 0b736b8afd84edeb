"""What every service shows: JSON logs, /metrics, /healthz and /readyz, and how it ends.

Logs are one JSON object a line, constant text plus fields; metrics are Prometheus'. Liveness says
only that the service's loop turns: an outage of broker or store must never restart a trainer.
"""

import json
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from socketserver import ThreadingMixIn
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app
from pydantic import ValidationError
from pydantic_settings import BaseSettings
from pythonjsonlogger.json import JsonFormatter

from fedfa import __version__
from fedfa.errors import FedfaError, Misconfigured, StoreUnavailable
from fedfa.settings import BrokerSettings, ServiceSettings, StoreSettings, wrong_settings

logger = logging.getLogger(__name__)

EXIT_MISCONFIGURED = 64  # EX_USAGE: change the settings
EXIT_FENCED = 70  # EX_SOFTWARE: another writer holds the federations; let Kubernetes back off
EXIT_BROKEN = 71  # EX_OSERR: this process fails at everything or hangs, a new one may not
LIVENESS_SECONDS = 120.0
STORE_WAIT_SECONDS = 1.0
LINES_A_MINUTE = 60

S = TypeVar("S", bound=BaseSettings)
Own = TypeVar("Own", bound=ServiceSettings)
Answer = tuple[int, Any]  # HTTP status, JSON value
Route = Callable[[], Answer]


def configure_logging(service: str, *, level: str, as_json: bool) -> None:
    """Log to stderr: JSON for machines, one plain line each for people."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(Limit())
    if as_json:
        formatter: logging.Formatter = JsonFormatter(
            "{asctime}{levelname}{name}{message}",
            style="{",
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
            static_fields={"service": service},
        )
    else:
        formatter = PlainFormatter(f"%(asctime)s {service} %(levelname)s %(message)s")
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)


class Limit(logging.Filter):
    """Lets a warning or an error through LINES_A_MINUTE times a minute: a flood fills no disk.

    Lines are the same if their constant text is. The next one that passes has a field `left_out`,
    the number of those that did not. Other levels pass.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._minute = -1
        self._lines: Counter[tuple[str, str]] = Counter()
        self._left_out: Counter[tuple[str, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        key, minute = (record.name, str(record.msg)), int(self._clock() // 60)
        if minute != self._minute:
            self._minute = minute
            self._lines.clear()
        self._lines[key] += 1
        if self._lines[key] > LINES_A_MINUTE:
            self._left_out[key] += 1
            return False
        if left_out := self._left_out.pop(key, 0):
            record.left_out = left_out
        return True


class PlainFormatter(logging.Formatter):
    """A line for people, with the extra fields at its end."""

    _standard = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        extra = {key: value for key, value in vars(record).items() if key not in self._standard}
        fields = " ".join(f"{key}={value}" for key, value in extra.items())
        return f"{super().format(record)} {fields}".rstrip()


class Pulse:
    """The heartbeat of a service's loop; /healthz fails once it stops for long."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    def beat(self) -> None:
        self._last = self._clock()

    def answer(self) -> Answer:
        silent = self._clock() - self._last
        healthy = silent < LIVENESS_SECONDS
        return (200 if healthy else 503), {"alive": healthy, "silent_seconds": round(silent, 3)}


def ready(is_ready: Callable[[], bool]) -> Route:
    """A readiness route."""

    def answer() -> Answer:
        good = is_ready()
        return (200 if good else 503), {"ready": good}

    return answer


def serve_http(host: str, port: int, routes: Mapping[str, Route]) -> int:
    """Serve JSON routes and /metrics from daemon threads; returns the port (0 picks a free one)."""
    metrics = make_wsgi_app()

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return metrics(environ, start_response)
        status, value = routes[path]() if path in routes else (404, {"paths": sorted(routes)})
        names = {200: "200 OK", 404: "404 Not Found", 503: "503 Service Unavailable"}
        start_response(names[status], [("Content-Type", "application/json")])
        return [json.dumps(value).encode()]

    try:
        server = make_server(host, port, application, _ThreadingServer, _SilentHandler)
    except OSError as error:
        raise cannot_listen(host, port, error) from error
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return int(server.server_port)


def cannot_listen(host: str, port: int, error: OSError) -> Misconfigured:
    return Misconfigured(
        f"cannot listen on {host}:{port}: {error.strerror}; "
        "choose another FEDFA_HTTP_PORT or FEDFA_HTTP_HOST"
    )


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not worth a log line."""


def begin(service: str, kind: type[Own]) -> tuple[Own, BrokerSettings, StoreSettings]:
    """How every service starts: --version, its settings, its log. May end the process."""
    if "--version" in sys.argv:
        print(f"fedfa-{service} {__version__}")
        raise SystemExit(0)
    settings = settings_or_exit(kind)
    broker, store = settings_or_exit(BrokerSettings), settings_or_exit(StoreSettings)
    configure_logging(service, level=settings.log_level, as_json=settings.log_json)
    return settings, broker, store


def await_bucket(prepare: Callable[[], None]) -> None:
    """Prepare the bucket at a service's start; wait for as long as it gives no clear answer."""
    while True:
        try:
            prepare()
            return
        except StoreUnavailable as error:
            logger.warning("waiting for the bucket", extra={"reason": str(error)})
            time.sleep(STORE_WAIT_SECONDS)


def settings_or_exit(kind: type[S]) -> S:
    """Read settings from the environment, or end the process with one clear line each."""
    try:
        return kind()
    except ValidationError as error:
        print(*wrong_settings(kind, error), sep="\n", file=sys.stderr)
        raise SystemExit(EXIT_MISCONFIGURED) from None


def end(error: FedfaError, *, exit_code: int = EXIT_MISCONFIGURED) -> SystemExit:
    """The exit of a service that cannot go on: one line for people, no traceback."""
    logging.getLogger("fedfa").error(str(error), extra={"error": type(error).__name__})
    return SystemExit(exit_code)
