"""What may be deleted from a federation's folder, and what must stay. PURE: it deletes nothing.

A verdict needs a manifest that was the newest when it was read, and holds for ever: what one
manifest lets go, no later one can need. So a collector that stalls between its look and its
deletion does no harm.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedfa import keys
from fedfa.events import Merged
from fedfa.federation import is_evaluation_due
from fedfa.keys import ObjectInfo
from fedfa.log import Evaluation, Manifest, ModelRef
from fedfa.merge import rule_of
from fedfa.sections import KeepBounded, RetentionChoice, Stop
from fedfa.spec import FederationSpec
from fedfa.stops import target_stop
from fedfa.summary import goodness, leading_metric

# An evaluation may be under way of a version that is not the newest due one any more. Which one
# it is the log does not say: so many of those that have no result yet stay, the newest first.
WAITING_KEPT = 10


@dataclass(frozen=True, slots=True)
class Commit:
    """A manifest as retention sees it; window and merged are keys of updates."""

    n: int
    model: ModelRef
    window: tuple[str, ...]
    merged: tuple[str, ...]


def commit_of(manifest: Manifest) -> Commit:
    assert manifest.model is not None, "only a federation that ended unborn has no model"
    return Commit(
        manifest.n,
        manifest.model,
        tuple(entry.key for entry in manifest.state.window),
        tuple(
            decision.event.update.key
            for decision in manifest.decisions
            if isinstance(decision.event, Merged)
        ),
    )


def recent(backwards: Iterable[Manifest], keep_last: int) -> tuple[Commit, ...]:
    """The end of the log: the newest `keep_last` models and all that was committed since.

    Takes manifests from the newest one down and no more than it needs. The last commit returned
    is the one that made the oldest of these models.
    """
    commits: list[Commit] = []
    versions: set[int] = set()
    for commit in map(commit_of, backwards):
        versions.add(commit.model.version)
        if len(versions) > keep_last:
            break
        commits.append(commit)
    return tuple(commits)


def missing(commits: Sequence[Commit], present: Container[str]) -> str | None:
    """A key that the recent commits need and that is not present; None if all are."""
    needed = [key for commit in commits[:-1] for key in (commit.model.key, *commit.merged)]
    needed += [commits[-1].model.key, *commits[-1].window]
    return next((key for key in needed if key not in present), None)


def oldest_whole(backwards: Iterable[Manifest], present: Container[str]) -> int | None:
    """The number of the oldest manifest after which every model can be made again.

    Takes manifests from the newest one down, until an update is missing.
    """
    oldest = None
    for commit in map(commit_of, backwards):
        if commit.model.key in present and all(key in present for key in commit.window):
            oldest = commit.n
        if not all(key in present for key in commit.merged):
            break
    return oldest


def is_milestone(policy: RetentionChoice, version: int) -> bool:
    """Whether this version's model is kept for ever, so that it must have one of its own."""
    return isinstance(policy, KeepBounded) and bool(
        policy.keep_every and version % policy.keep_every == 0
    )


@dataclass(frozen=True, slots=True)
class Kept:
    """What must stay.

    models: the committed models from version `oldest` to `newest`, by key; whatever else has
    such a version lost its commit. older: versions below whose models stay; settled: the
    committed key of an older version, where the folder holds several.
    updates: what the recent models are made of, by key. generations: the open one of each slot;
    none once the federation is over.
    """

    federation: str
    policy: KeepBounded
    oldest: int
    newest: int
    models: frozenset[str]
    older: frozenset[int]
    settled: Mapping[int, str]
    updates: frozenset[str]
    generations: tuple[int, ...]

    def holds(self, key: str) -> bool:
        version = keys.version_of(self.federation, key)
        if version is not None:
            return self._holds_model(version, key)
        job = keys.job_of(self.federation, key)
        if job is not None:
            return key in self.updates or self._may_be_decided(*job)
        return True  # manifests, evaluations, spec, stop, HEAD, and what is not ours

    def _holds_model(self, version: int, key: str) -> bool:
        if version > self.newest:  # its commit may be under way
            return True
        if version >= self.oldest:
            return key in self.models
        stays = version in self.older or is_milestone(self.policy, version)
        return stays and self.settled.get(version, key) == key

    def _may_be_decided(self, slot: int, generation: int) -> bool:
        if not self.generations:
            return False
        return slot >= len(self.generations) or generation >= self.generations[slot]


def keep(
    policy: KeepBounded,
    spec: FederationSpec,
    head: Manifest,
    commits: Sequence[Commit],
    models: Iterable[ObjectInfo],
    *,
    now: float,
    evaluation_of: Callable[[int], Evaluation | None],
) -> Kept:
    """What must stay by the newest manifest.

    commits: the `recent` ones. models: all that are listed since then. evaluation_of: asked only
    for versions that their evaluation may keep, or the want of one.
    """
    oldest = commits[-1].model.version
    old = [info.key for info in models if is_old(policy, info, now=now)]
    versions = [keys.version_of(head.federation, key) for key in old]
    found = {
        version: evaluation_of(version)
        for version in versions
        if version is not None
        and version < oldest
        and is_evaluation_due(spec, head.state, version)
        and not is_milestone(policy, version)
    }
    evaluations = {version: each for version, each in found.items() if each is not None}
    older = _best(spec.stop, evaluations)
    stop = target_stop(spec.stop, evaluations.values())
    if stop is not None:
        older.add(stop.final_version)
    if head.state.status == "running":
        newest_evaluated = max(evaluations, default=-1)
        waiting = sorted((v for v in found if v > newest_evaluated), reverse=True)
        older |= set(waiting[:WAITING_KEPT])
        reach = rule_of(spec).max_staleness or 0  # bases of updates that may still be merged
        older |= set(range(head.state.version - reach, head.state.version))
    if head.state.final_version is not None:
        older.add(head.state.final_version)
    return Kept(
        federation=head.federation,
        policy=policy,
        oldest=oldest,
        newest=commits[0].model.version,
        models=frozenset(commit.model.key for commit in commits),
        older=frozenset(older),
        settled={},
        updates=frozenset(commits[-1].window).union(*(commit.merged for commit in commits[:-1])),
        generations=tuple(slot.generation for slot in head.state.slots),
    )


def deletable(kept: Kept, listing: Iterable[ObjectInfo], *, now: float) -> Iterator[str]:
    """The keys that may go, of an object listing made after the newest manifest was read."""
    for info in listing:
        if is_old(kept.policy, info, now=now) and not kept.holds(info.key):
            yield info.key


def is_old(policy: KeepBounded, info: ObjectInfo, *, now: float) -> bool:
    return now - info.modified >= policy.min_age_seconds


def _best(stop: Stop, evaluations: Mapping[int, Evaluation]) -> set[int]:
    """The version that `status` and the report call the best one."""
    metric = leading_metric(stop, evaluations.values())
    values = {
        version: goodness(metric, evaluations[version].metrics[metric])
        for version in sorted(evaluations)
        if metric is not None and metric in evaluations[version].metrics
    }
    return {max(values, key=lambda version: values[version])} if values else set()
