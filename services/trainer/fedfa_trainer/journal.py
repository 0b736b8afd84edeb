"""What a trainer delivers, as JSON lines in a file: evidence for tests, and for audits."""

import json
import threading
import time
from pathlib import Path

from fedfa.messages import UpdateReady


class Journal:
    """Appends to a file, which other trainers may share; without a path it does nothing."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()

    def putting(self, update: UpdateReady) -> None:
        """The update's file is about to be written."""
        self._write("putting", update)

    def confirmed(self, update: UpdateReady) -> None:
        """The broker has the update's announcement."""
        self._write("confirmed", update)

    def _write(self, event: str, update: UpdateReady) -> None:
        if self._path is None:
            return
        fields = update.model_dump(include={"uid", "slot", "generation", "attempt", "key"})
        line = json.dumps({"at": time.time(), "event": event, "trainer": update.trainer, **fields})
        with self._lock, self._path.open("a") as file:  # one write each: a line is whole or absent
            file.write(line + "\n")
