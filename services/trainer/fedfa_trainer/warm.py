"""What a trainer keeps of a federation between two of its jobs: task, module, newest model."""

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from fedfa.log import Birth
from fedfa.spec import Submission
from fedfa.tasks.base import Task
from fedfa.tensors import FlatModel

MAX_FEDERATIONS = 4  # kept at once, each with a module on its device and one model


@dataclass(slots=True)
class Warm:
    """One federation. birth is None until its frozen weights were compared with this module's.

    digest and model: the last one downloaded.
    """

    submission: Submission
    task: Task
    module: nn.Module
    birth: Birth | None = None
    digest: str = ""
    model: FlatModel | None = None


class Shelf:
    """The most recently used federations, by uid. Only for whoever has the computing turn."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, Warm] = OrderedDict()

    def take(self, uid: str) -> Warm | None:
        """Off the shelf, until it is put back."""
        return self._entries.pop(uid, None)

    def put(self, warm: Warm) -> None:
        self._entries[warm.submission.uid] = warm
        while len(self._entries) > MAX_FEDERATIONS:
            self._entries.popitem(last=False)

    def drop(self, uid: str) -> None:
        self._entries.pop(uid, None)
