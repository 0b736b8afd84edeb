"""The part of an error that helps whoever wrote the task, short enough for a message."""

import traceback

from fedfa.errors import FedfaError

MAX_CHARACTERS = 3_000
MAX_HEADLINE = 1_000
MAX_FRAMES = 8


def explain(error: BaseException) -> str:
    """What went wrong, and for the task's own errors the last frames of where."""
    if isinstance(error, FedfaError):
        return _printable(str(error))[:MAX_CHARACTERS]
    headline = "".join(traceback.format_exception_only(error)).strip()
    text = _printable(headline)[:MAX_HEADLINE]
    frames = [_printable(frame) for frame in traceback.format_tb(error.__traceback__)]
    kept: list[str] = []
    room = MAX_CHARACTERS - len(text) - 1
    for frame in reversed(frames[-MAX_FRAMES:]):
        if len(frame) > room:
            break
        kept.insert(0, frame)
        room -= len(frame)
    return "\n".join([text, "".join(kept)]).rstrip()


def _printable(text: str) -> str:
    return text.encode("utf-8", errors="replace").decode()
