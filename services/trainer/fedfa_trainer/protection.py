"""Marks the Kubernetes pod that this trainer runs in while it holds work.

Scale-in, node scale-down and consolidation then take idle pods first. It is a wish and no promise:
whatever goes wrong here is logged and tried again, and no work waits for it.
"""

import http.client
import json
import logging
import os
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedfa.errors import Misconfigured

logger = logging.getLogger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
IDLE_SECONDS = 10.0  # a trainer that has just delivered is soon busy again
RETRY_SECONDS = 15.0
TIMEOUT_SECONDS = 5.0
BUSY = {
    "controller.kubernetes.io/pod-deletion-cost": "100",  # ReplicaSets remove the cheapest first
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}


class NotMarked(Exception):
    """The API server's answer, when it is not a yes."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, and the API server that knows it. account: the folder with its token and authority."""

    name: str
    host: str
    port: int
    account: Path

    @classmethod
    def here(cls, name: str, environment: Mapping[str, str] = os.environ) -> "Pod":
        """The pod of this process. Raises Misconfigured outside of one, or without a token."""
        host = environment.get("KUBERNETES_SERVICE_HOST")
        missing = [
            n for n in ("token", "ca.crt", "namespace") if not (SERVICE_ACCOUNT / n).exists()
        ]
        if not host or missing:
            reason = (
                f"no {', '.join(missing)} in {SERVICE_ACCOUNT}" if host else "no Kubernetes here"
            )
            raise Misconfigured(
                f"FEDFA_TRAINER_POD: {reason}; mount a service-account token, or leave it unset"
            )
        port = int(environment.get("KUBERNETES_SERVICE_PORT", "443"))
        return cls(name, host, port, SERVICE_ACCOUNT)

    def mark(self, is_busy: bool) -> None:
        """Set the annotations, or remove them. Raises NotMarked or OSError."""
        annotations = BUSY if is_busy else dict.fromkeys(BUSY)
        body = json.dumps({"metadata": {"annotations": annotations}})
        namespace = self._read("namespace")
        context = ssl.create_default_context(cafile=self.account / "ca.crt")
        connection = http.client.HTTPSConnection(
            self.host, self.port, context=context, timeout=TIMEOUT_SECONDS
        )
        headers = {
            "Authorization": f"Bearer {self._read('token')}",  # read again: it is rotated
            "Content-Type": "application/merge-patch+json",
        }
        try:
            connection.request(
                "PATCH", f"/api/v1/namespaces/{namespace}/pods/{self.name}", body, headers
            )
            answer = connection.getresponse()
            text = answer.read(2000).decode(errors="replace")
        except http.client.HTTPException as error:
            raise NotMarked(f"no answer that can be read: {error!r}") from error
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise NotMarked(f"{answer.status} {answer.reason}: {text}")

    def _read(self, name: str) -> str:
        return (self.account / name).read_text().strip()


class Protection:
    """Keeps the marks as show() last said, from a thread of its own."""

    def __init__(
        self,
        mark: Callable[[bool], None],
        *,
        idle_seconds: float = IDLE_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._mark = mark
        self._idle_seconds = idle_seconds
        self._retry_seconds = retry_seconds
        self._changed = threading.Condition()
        self._is_busy = False
        self._is_closed = False
        threading.Thread(target=self._run, name="protection", daemon=True).start()

    def show(self, is_busy: bool) -> None:
        """Whether work is held. Returns at once."""
        with self._changed:
            if is_busy != self._is_busy:
                self._is_busy = is_busy
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _run(self) -> None:
        shown: bool | None = None  # a container that was restarted may have left its marks
        while (wanted := self._next(shown)) is not None:
            try:
                self._mark(wanted)
                shown = wanted
            except (NotMarked, OSError) as error:
                logger.warning("the pod is not marked", extra={"reason": str(error)})
                shown = None  # an unclear answer may have been a yes
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed, self._retry_seconds)

    def _next(self, shown: bool | None) -> bool | None:
        """Wait for what is to be shown next; None: nothing any more."""
        with self._changed:
            while not self._is_closed:
                if self._is_busy == shown:
                    self._changed.wait()
                elif shown and self._changed.wait_for(
                    lambda: self._is_closed or self._is_busy, self._idle_seconds
                ):
                    continue  # busy again
                else:
                    return self._is_busy
        return None
