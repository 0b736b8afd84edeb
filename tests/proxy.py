"""A TCP proxy on 127.0.0.1 that a test can make misbehave: the network between us and a server."""

import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

CHUNK_BYTES = 65_536
REMEMBERED = 10_000
METHODS = (b"GET ", b"PUT ", b"HEAD ", b"DELETE ", b"POST ")
# What an AMQP client sends: its name, after a length of four bytes; and its first request.
NAME = b"connection_nameS"


@dataclass(eq=False)
class _Conversation:
    """One forwarded connection.

    request: the first line of the last HTTP request. name: what an AMQP client says of itself.
    """

    client: socket.socket
    server: socket.socket
    request: bytes = b""
    name: bytes = b""

    def hang_up(self) -> None:
        """End the conversation, which wakes up whoever reads from its sockets."""
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Proxy:
    """Forwards every connection to `upstream_port`; use as a context manager."""

    def __init__(self, upstream_port: int) -> None:
        self.num_cut = 0
        self._upstream_port = upstream_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._cuts: list[int] = []
        self._cut_only = b""
        self._requests: deque[bytes] = deque(maxlen=REMEMBERED)  # first lines
        self._overload: bytes | None = None
        self._is_refusing = False
        self._cut_off: bytes | None = None
        self._flowing = threading.Event()
        self._flowing.set()
        self._open: set[_Conversation] = set()
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

    def cut_responses(self, count: int, *, after_bytes: int = 0, only: bytes = b"") -> None:
        """Let the next requests through, then end their connections this far into the answer.

        only: requests whose first line contains this.
        """
        with self._lock:
            self._cuts = [after_bytes] * count
            self._cut_only = only

    def num_requests(self, start: bytes) -> int:
        """How many HTTP requests have a first line that begins so, of the latest ones."""
        with self._lock:
            return sum(line.startswith(start) for line in self._requests)

    def overload(self, status: str = "503 Slow Down") -> None:
        """Let requests through, and answer each with this status, whatever became of it."""
        head = f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        self._overload = head.encode()

    def refuse(self) -> None:
        """End every connection and every new one."""
        self._is_refusing = True
        self._disconnect()

    def cut_off(self, name: bytes) -> None:
        """End every connection of the AMQP client whose name begins so, and every new one."""
        self._cut_off = name
        with self._lock:
            for conversation in self._open:
                if self._is_cut_off(conversation):
                    conversation.hang_up()

    def stall(self) -> None:
        """Accept connections and requests, but forward no answers."""
        self._flowing.clear()

    def heal(self) -> None:
        self._is_refusing = False
        self._cut_off = None
        self._overload = None
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
            conversation = _Conversation(client, server)
            with self._lock:
                self._open.add(conversation)
            self._spawn(self._serve, conversation)

    def _serve(self, conversation: _Conversation) -> None:
        client, server = conversation.client, conversation.server
        with client, server:
            requests = self._spawn(self._forward, conversation)
            self._answer(conversation)
            requests.join()
        with self._lock:
            self._open.discard(conversation)

    def _forward(self, conversation: _Conversation) -> None:
        client, server = conversation.client, conversation.server
        with suppress(OSError):
            while data := client.recv(CHUNK_BYTES):
                if data.startswith(METHODS):
                    conversation.request = data.partition(b"\r\n")[0]
                    with self._lock:
                        self._requests.append(conversation.request)
                if NAME in data:
                    text = data.partition(NAME)[2]
                    conversation.name = text[4 : 4 + int.from_bytes(text[:4])]
                if self._is_cut_off(conversation):
                    break
                server.sendall(data)
        conversation.hang_up()

    def _is_cut_off(self, conversation: _Conversation) -> bool:
        name = self._cut_off
        return name is not None and conversation.name.startswith(name)

    def _answer(self, conversation: _Conversation) -> None:
        client, server = conversation.client, conversation.server
        with suppress(OSError):
            while data := server.recv(CHUNK_BYTES):
                self._flowing.wait()
                is_final = not data.startswith(b"HTTP/1.1 100 ")
                if self._overload is not None and is_final and data.startswith(b"HTTP/"):
                    client.sendall(self._overload)
                    break
                cut = self._next_cut(conversation.request) if is_final else None
                client.sendall(data[:cut])
                if cut is not None:
                    break
        conversation.hang_up()

    def _next_cut(self, request: bytes) -> int | None:
        with self._lock:
            if not self._cuts or self._cut_only not in request:
                return None
            self.num_cut += 1
            return self._cuts.pop()

    def _disconnect(self) -> None:
        with self._lock:
            for conversation in self._open:
                conversation.hang_up()

    def _spawn(self, target: Callable[..., None], *args: _Conversation) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread
