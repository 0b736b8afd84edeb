"""Every error that crosses a module's edge, and its fate.

FedfaError
|-- InvalidInput           reject: a value from outside is wrong; the text says what to change
|   |-- InvalidSpec            a federation's YAML
|   |-- InvalidMessage         a message that does not decode; goes to the dead-letter queue
|   |-- InvalidTensors         a safetensors file that is not what the template demands
|   |   `-- Diverged               training ends in inf or nan (fedfa_trainer.failures)
|   |-- InvalidData            a task cannot find or read its data
|   |-- UnknownTask            this trainer does not have the spec's task, another one may
|   `-- TooLarge               an object exceeds the size that its reader allows
|-- Unavailable            retry here: an outage, never a verdict
|   |-- StoreUnavailable       no clear answer from the object store
|   `-- BrokerUnavailable      no connection to the broker, or no confirm
|-- NotFound               the object does not exist (the store said so: 404)
|-- AlreadyExists          a create-once object is there already
|-- Fenced                 another writer committed this manifest: reload and decide again
|-- Undecidable            reject: no aggregator can decide this message (fedfa_aggregator.births)
|-- Ahead                  look at the bucket again, then reject (fedfa_aggregator.deciding)
|-- Postponed              no memory for it now: it is announced again (fedfa_aggregator.loading)
|-- Mismatch               a log does not replay to what it records (fedfa.replay)
|-- Cancelled              the job was closed or handed to a newer attempt: drop the work
|-- TaskFailed             die: a task or its data, in a simulation (fedfa.simulate.workers)
|-- Broken                 die: this process fails at everything (fedfa_trainer.failures)
`-- Misconfigured          die: wrong settings, permissions or store; a restart will not help
"""


class FedfaError(Exception):
    """The root: one clear line for people, with the values in it."""


class InvalidInput(FedfaError):
    """Raised when a value from outside is wrong."""


class InvalidSpec(InvalidInput):
    """Raised when a federation's spec is wrong."""


class InvalidMessage(InvalidInput):
    """Raised when a message does not decode or breaks its schema."""


class InvalidTensors(InvalidInput):
    """Raised when a safetensors file is malformed or differs from its template."""


class InvalidData(InvalidInput):
    """Raised when a task's data is missing or unreadable."""


class UnknownTask(InvalidInput):
    """Raised when a spec's task is not installed here, or its module is not allowed."""


class TooLarge(InvalidInput):
    """Raised when an object is larger than its reader allows; its body was not read."""

    def __init__(self, text: str, *, size_bytes: int) -> None:
        super().__init__(text)
        self.size_bytes = size_bytes


class Unavailable(FedfaError):
    """Raised when a peer gives no clear answer; the effect may or may not have happened."""


class StoreUnavailable(Unavailable):
    """Raised when the object store gives no clear answer."""


class BrokerUnavailable(Unavailable):
    """Raised when the broker cannot be reached or does not confirm."""


class NotFound(FedfaError):
    """Raised when the store says that an object does not exist."""


class AlreadyExists(FedfaError):
    """Raised when a create-once object exists already."""


class Fenced(FedfaError):
    """Raised when another writer committed the manifest that this one wanted to write."""


class Cancelled(FedfaError):
    """Raised inside training when its job no longer matters."""


class Misconfigured(FedfaError):
    """Raised when settings, permissions or the store make it impossible to work."""
