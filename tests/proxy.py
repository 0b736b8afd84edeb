"""A TCP proxy on 127.0.0.1 that a test can make misbehave: the network between us and a server."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

CHUNK_BYTES = 65_536


class Proxy:
    """Forwards every connection to `upstream_port`; use as a context manager."""

    def __init__(self, upstream_port: int) -> None:
        self.num_cut = 0
        self._upstream_port = upstream_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._cuts: list[int] = []
        self._is_refusing = False
        self._flowing = threading.Event()
        self._flowing.set()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Proxy":
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._flowing.set()
        self._disconnect()
        for thread in self._threads:
            thread.join()

    def cut_responses(self, count: int, *, after_bytes: int = 0) -> None:
        """Let the next requests through, then end their connections this far into the answer."""
        with self._lock:
            self._cuts = [after_bytes] * count

    def refuse(self) -> None:
        """End every connection and every new one."""
        self._is_refusing = True
        self._disconnect()

    def stall(self) -> None:
        """Accept connections and requests, but forward no answers."""
        self._flowing.clear()

    def heal(self) -> None:
        self._is_refusing = False
        self._flowing.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._is_refusing:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self._upstream_port))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
            self._spawn(self._serve, client, server)

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            requests = self._spawn(self._forward, client, server)
            self._answer(server, client)
            requests.join()
        with self._lock:
            self._open -= {client, server}

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(CHUNK_BYTES):
                server.sendall(data)
        _hang_up(client, server)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(CHUNK_BYTES):
                self._flowing.wait()
                cut = None if data.startswith(b"HTTP/1.1 100 ") else self._next_cut()
                client.sendall(data[:cut])
                if cut is not None:
                    break
        _hang_up(client, server)

    def _next_cut(self) -> int | None:
        with self._lock:
            if not self._cuts:
                return None
            self.num_cut += 1
            return self._cuts.pop()

    def _disconnect(self) -> None:
        with self._lock:
            _hang_up(*self._open)

    def _spawn(self, target: Callable[..., None], *args: socket.socket) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread


def _hang_up(*ends: socket.socket) -> None:
    """End the conversation, which wakes up whoever reads from these sockets."""
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
