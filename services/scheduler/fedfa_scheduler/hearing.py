"""What silence means: whether a trainer that is not heard may be taken for gone. PURE.

While messages wait unheard it may not. From when none waits, trainers have one lease_ttl to be
heard; then silence counts.
"""

from dataclasses import dataclass

from fedfa_scheduler.leases import Lease


@dataclass(frozen=True, slots=True)
class Hearing:
    """settled_at: when silence counts; None after a start or a gap, until the queue is drained.

    is_behind: this scheduler stood still, and heartbeats wait to be heard.
    """

    lease_ttl_seconds: float
    settled_at: float | None = None
    is_behind: bool = False

    @property
    def is_prompt(self) -> bool:
        """Whether what is heard has just been said, and did not wait through a gap."""
        return self.settled_at is not None and not self.is_behind

    def is_settled(self, now: float) -> bool:
        return self.settled_at is not None and not self.is_behind and now >= self.settled_at

    def has_expired(self, lease: Lease, now: float) -> bool:
        return (
            lease.stage == "claimed"
            and self.is_settled(now)
            and now - lease.since > self.lease_ttl_seconds
        )

    def may_be_lost(self, lease: Lease, now: float) -> bool:
        """Whether its message is, if the queue holds too few."""
        # A second InitModel costs little and its first answer wins: do not let a newcomer wait.
        return self.is_settled(now) or (lease.work.activity == "init" and self.is_prompt)

    def look_again_at(self, lease: Lease, now: float) -> float:
        """When time alone may call for something about this lease."""
        if lease.stage == "owed" and lease.not_before > now:
            return lease.not_before
        if lease.stage == "claimed" and self.settled_at is not None and not self.is_behind:
            return max(lease.since + self.lease_ttl_seconds, self.settled_at)
        if lease.stage in ("delivered", "given_up") and lease.sent_at is not None:
            return lease.sent_at + self.lease_ttl_seconds
        return now + self.lease_ttl_seconds
