"""A process that stands for leadership, for the tests that kill, stop and fork it. Says what happens, a line each."""

from __future__ import annotations

import datetime as dt
import os
import sys
import time

from leasequeue import LeaseLost, LeaseQueue
from leasequeue.lease.hold import boottime

# As the driver takes it: text() would import SQLAlchemy in candidates that never write, too.
WRITE = "INSERT INTO written (term, pid) VALUES (%(t)s, %(p)s)"


def main(url: str, mode: str, ttl: float) -> None:
    lq = LeaseQueue()
    lq.configure(url=url)
    span = dt.timedelta(seconds=ttl)

    def say(*words: object) -> None:
        print(*words, f"{time.time():.3f}", flush=True)

    if mode == "fork":
        lease = lq.try_lease("leader", ttl=span)
        assert lease, str(lease)
        child = os.fork()
        if child == 0:
            try:
                lease.check()
                say("child-trusts")
            except LeaseLost:
                say("child-refuses")
            with lq.lease("other", ttl=span) as mine:
                say("child-holds", mine.hold.holder != lease.hold.holder, not lq.try_lease("leader", ttl=span))
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        lease.check()
        say("parent-holds")
        lease.release()
        return

    with lq.leader("leader", ttl=span, on_lost=lambda _: say("lost", f"{boottime():.3f}")) as me:
        while True:
            if not me.wait(1.0):
                continue
            lease = me.lease
            say("leads", lease.term, lease.hold.holder)
            while me.is_leader:
                # Works under its lease, fenced, as fast as it can; a stop may come between any two lines.
                try:
                    lease.check()
                    with lq.begin() as conn:
                        lease.fence(conn)
                        conn.exec_driver_sql(WRITE, {"t": lease.term, "p": os.getpid()})
                except LeaseLost as error:
                    say("refused", lease.term, type(error).__name__)
                    break
                except Exception as error:  # noqa: BLE001  # the server ended an idle transaction
                    say("failed", type(error).__name__)
                    break
                time.sleep(0.002)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
