"""fedfa-scheduler: settings -> store, broker -> loop."""

import secrets
import signal
import time
from contextlib import closing

from fedfa import dashboard
from fedfa.broker import Consumer, Publisher
from fedfa.dashboard import Control, DashboardSettings, Feed
from fedfa.errors import FedfaError
from fedfa.observability import (
    Pulse,
    await_bucket,
    begin,
    end,
    ready,
    settings_or_exit,
)
from fedfa.s3 import S3Store
from fedfa.topology import BROADCAST_QUEUE, EVENTS_QUEUE
from fedfa_scheduler.fleet import Fleet
from fedfa_scheduler.leases import Attempts
from fedfa_scheduler.service import PREFETCH, Scheduler, run
from fedfa_scheduler.settings import SchedulerSettings

OUTAGE_SECONDS = 5.0  # the loop itself tries again, and must go on listening
DASHBOARD_READERS = 4
DASHBOARD_SHARE = 0.2  # of one thread's time, for old manifests: the loop has the same interpreter


def main() -> None:
    settings, broker_settings, store_settings = begin("scheduler", SchedulerSettings)
    token = settings_or_exit(DashboardSettings).token
    outage_seconds = min(OUTAGE_SECONDS, store_settings.outage_seconds)
    reconnect_seconds = min(broker_settings.reconnect_max_seconds, settings.lease_ttl_seconds / 3)
    broker_settings = broker_settings.model_copy(
        update={"reconnect_max_seconds": reconnect_seconds}
    )
    try:
        await_bucket(S3Store(store_settings).ensure_bucket)
        store = S3Store(store_settings.model_copy(update={"outage_seconds": outage_seconds}))
        with (
            closing(Publisher(broker_settings, name="scheduler")) as publisher,
            closing(
                Consumer(
                    broker_settings,
                    [(EVENTS_QUEUE, PREFETCH), (BROADCAST_QUEUE, PREFETCH)],
                    name="scheduler",
                    idle_seconds=min(0.2, settings.reconcile_interval_seconds),
                )
            ) as consumer,
        ):
            for signal_number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signal_number, lambda *_: consumer.stop())
            attempts = Attempts(start_ms=time.time_ns() // 1_000_000, random=secrets.randbits(32))
            fleet = Fleet(
                lease_ttl_seconds=settings.lease_ttl_seconds,
                attempts=attempts,
                pool_down_after_seconds=settings.pool_down_after_seconds,
            )
            pulse = Pulse()
            scheduler = Scheduler(fleet, store, publisher, settings, beat=pulse.beat)
            routes = {
                "/healthz": pulse.answer,
                "/readyz": ready(lambda: consumer.is_consuming),
                "/open-jobs": scheduler.open_jobs,
                "/federations": scheduler.federations,
            }
            feed = Feed(
                S3Store(store_settings.model_copy(update={"outage_seconds": outage_seconds})),
                readers=DASHBOARD_READERS,
                share=DASHBOARD_SHARE,
                live=scheduler.shown_federations,
            )
            control = None if token is None else Control(token, scheduler.notice)
            app = dashboard.application(feed, routes=routes, control=control)
            dashboard.serve(app, settings.http_host, settings.http_port)
            with closing(feed):
                run(consumer, scheduler, pulse)
    except FedfaError as error:
        raise end(error) from error


if __name__ == "__main__":
    main()
