"""Serves an ASGI application from a daemon thread, beside whatever else its process does."""

import asyncio
import socket
import threading

import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp

from fedfa.observability import cannot_listen

LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def serve(app: ASGIApp, host: str, port: int) -> int:
    """Serve until the process ends; returns the port (0 picks a free one). Raises Misconfigured."""
    if host in LOOPBACK:  # a foreign name that resolves to this machine is another site's page
        app = TrustedHostMiddleware(app, allowed_hosts=[*LOOPBACK, "[::1]"])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise cannot_listen(host, port, error) from error
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        ws="none",
        lifespan="off",
        proxy_headers=False,
        server_header=False,
    )
    server = uvicorn.Server(config)
    threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listener])), name="http", daemon=True
    ).start()
    return int(listener.getsockname()[1])
