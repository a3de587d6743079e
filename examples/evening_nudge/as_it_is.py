"""As it is: the tick is a row, the guard is its key, and what a tick does is one transaction.

    schedule ──> job evening_nudge: whose turn is it? ──> jobs mail_batch ──> a mail, its row in `sent`, the next mail ...
    (ledger)     enqueues the batches, and is over:        one at a time, each mail once by (tick, subscriber)
                 one commit

Any number of instances may run this. Each tick makes one job, whoever fires it; a batch is held by a lease that ends with
its holder; and no step needs the same connection as another one.

One gap is left, between the mail server's reply and the commit of the row: a process that dies there has sent a mail that
nobody wrote down. It is sent again, under the same Message-ID, by which the receiving side can drop it.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import text

from examples.evening_nudge.application import TURN, batches, nudge, out, small_pool, smtp, visitors
from leasequeue import LeaseQueue, current_job

WITHIN = os.environ.get("NUDGE_CATCH_UP_SECONDS", "1800")
UNSENT = text(
    "SELECT id, email FROM subscriber WHERE id = ANY(:ids)"
    " AND NOT EXISTS (SELECT FROM sent WHERE sent.tick = :tick AND sent.subscriber = subscriber.id) ORDER BY id"
)
SENT = text(
    "INSERT INTO sent (tick, subscriber, message_id, busy) VALUES (:tick, :subscriber, :message_id, :busy)"
    " ON CONFLICT DO NOTHING"
)


@contextmanager
def site(lq: LeaseQueue) -> Iterator[None]:
    with visitors(lq.engine):
        yield


lq = LeaseQueue(lifespan=site)
lq.configure(engine=small_pool)


# Each minute is somebody's turn, so each minute that nobody ran is run later. After half an hour it is too late for a nudge:
# those minutes end as `missed`, and the ledger says so.
@lq.schedule(
    os.environ.get("NUDGE_WHEN", "* * * * *"),
    name="evening-nudge",
    catch_up=os.environ.get("NUDGE_CATCH_UP", "all"),
    catch_up_within=dt.timedelta(seconds=float(WITHIN)) if WITHIN else None,
)
@lq.task(name="evening_nudge")
def evening_nudge() -> None:
    """Works out whose turn it is, and makes a job of each batch."""
    ctx = current_job()
    if ctx.tick is None:
        raise ValueError("whose turn it is depends on the tick: leasequeue schedules run evening-nudge")
    with lq.begin() as conn:
        turn = [id for id, _ in conn.execute(TURN, {"tick": ctx.tick})]
        lq.enqueue_many(conn, [mail_batch.call(tick=ctx.tick, subscribers=ids) for ids in batches(turn)])
        ctx.complete(conn)


@lq.task(name="mail_batch", queue="mail")
def mail_batch(tick: dt.datetime, subscribers: list[int]) -> None:
    """Sends what is not sent yet. No connection of the pool is held while the mail server is talked to."""
    ctx = current_job()
    with lq.begin() as conn:
        unsent = conn.execute(UNSENT, {"tick": tick, "ids": subscribers}).all()
    if not unsent:
        return
    with smtp() as server:
        for subscriber, email in unsent:
            if ctx.cancelled.is_set():
                return  # stopped, or the lease is lost: whoever has it now sends the rest
            # Of the job, not of the attempt.
            message_id = f"<{ctx.id}.{subscriber}.{tick.astimezone(dt.UTC):%Y%m%dT%H%M%S}@nudge.example.org>"
            server.send_message(nudge(tick, email, message_id))
            _die_if_asked()
            busy = out(lq.engine)
            with lq.begin() as conn:
                row = {"tick": tick, "subscriber": subscriber, "message_id": message_id, "busy": busy}
                conn.execute(SENT, row)


def _die_if_asked() -> None:
    """For the test: whoever removes the file dies, with the reply of the mail server just read."""
    if crash := os.environ.get("NUDGE_CRASH_FILE"):
        with suppress(FileNotFoundError):
            Path(crash).unlink()
            os._exit(1)
