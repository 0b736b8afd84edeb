"""What the scheduler hears of one piece of work: that it began, and how it ended if not well."""

from contextlib import suppress

from fedfa.broker import Delivery, Publisher
from fedfa.errors import BrokerUnavailable, Cancelled, Misconfigured, NotFound, StoreUnavailable
from fedfa.failpoints import reach
from fedfa.messages import MAX_TEXT_CHARACTERS, JobFailed, JobReleased, JobStarted
from fedfa.topology import BROADCAST, EVENTS
from fedfa.tracebacks import explain
from fedfa_trainer.failures import Diverged
from fedfa_trainer.held import Held
from fedfa_trainer.work import Worker

RELEASE_TIMEOUT_SECONDS = 1.0


def claim(held: Held, delivery: Delivery, publisher: Publisher) -> None:
    """Everybody knows who has it before the broker forgets it."""
    started = held.fact(JobStarted)
    publisher.publish(started, EVENTS)
    reach("trainer.claim_sent")
    publisher.publish(started, BROADCAST)
    reach("trainer.claimed")
    delivery.ack()
    reach("trainer.acked")


def carry_out(held: Held, worker: Worker, publisher: Publisher) -> tuple[str, str]:
    """Do the work; returns its outcome, and the reason if it was not delivered."""
    try:
        worker.perform(held)
    except Cancelled as error:
        if held.released_at is not None:
            hand_back(held, publisher)
            return "released", held.reason
        if not held.has_failed:
            return "dropped", str(error)
        outcome, reason = "failed", held.reason
    except BrokerUnavailable:
        raise
    except Misconfigured as error:
        held.release(str(error))
        with suppress(BrokerUnavailable):
            hand_back(held, publisher, timeout_seconds=RELEASE_TIMEOUT_SECONDS)
        raise
    except (NotFound, StoreUnavailable) as error:  # the bucket is at fault, not this process
        outcome, reason = "unread", str(error)
    except (Exception, SystemExit) as error:  # the task's code may raise anything
        outcome, reason = "diverged" if isinstance(error, Diverged) else "failed", explain(error)
    else:
        return "delivered", ""
    # Out of the handler: the error's frames hold the task's tensors, and this may take long.
    publisher.publish(held.fact(JobFailed, error=reason), EVENTS)
    reach("trainer.failure_reported")
    return outcome, reason


def hand_back(held: Held, publisher: Publisher, *, timeout_seconds: float | None = None) -> None:
    """Tell that it is not done here. Raises BrokerUnavailable after timeout_seconds."""
    released = held.fact(
        JobReleased, reason=held.reason[:MAX_TEXT_CHARACTERS], missing=held.missing
    )
    publisher.publish(released, EVENTS, timeout_seconds=timeout_seconds)
