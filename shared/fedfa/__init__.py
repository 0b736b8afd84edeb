"""FedFa: fully asynchronous federated learning. What is named here is loaded when it is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedfa.client import Federation, Version, compare, submit
    from fedfa.comparison import Comparison
    from fedfa.summary import Summary

__version__ = "0.1.0"
__all__ = ["Comparison", "Federation", "Summary", "Version", "compare", "submit"]

_HOMES = {
    "Comparison": "fedfa.comparison",
    "Federation": "fedfa.client",
    "Summary": "fedfa.summary",
    "Version": "fedfa.client",
    "compare": "fedfa.client",
    "submit": "fedfa.client",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
