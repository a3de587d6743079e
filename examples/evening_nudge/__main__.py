"""Shows both variants on a Postgres from the wheel: ``python -m examples.evening_nudge was``, and ``... is``."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import create_engine, make_url, text

from examples.evening_nudge import as_it_was
from examples.evening_nudge.application import TABLES, small_pool
from examples.evening_nudge.smtp import Receiver
from leasequeue import LeaseQueue, embedded, schema

LOCKS = """SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
LEDGER = "SELECT outcome, reason, count(*) FROM leasequeue_tick WHERE outcome <> 'redefined' GROUP BY 1, 2 ORDER BY min(due_at)"
CHANGES = "SELECT reason FROM leasequeue_tick WHERE outcome = 'redefined' ORDER BY due_at"
SUBSCRIBERS = "INSERT INTO subscriber SELECT n, 'user' || n || '@example.org', 1, 0 FROM generate_series(1, 12) AS n"
LIVE = "SELECT count(*) FROM leasequeue_job"
TTL_SECONDS = 2


def was(query: Callable[[str], list[tuple[object, ...]]], receiver: Receiver, url: str) -> None:
    blue, green = as_it_was.Instance(small_pool(url)), as_it_was.Instance(small_pool(url))
    first = dt.datetime.now(dt.UTC).replace(microsecond=0)
    second = first + dt.timedelta(seconds=60)
    as_it_was.incident(blue, green, first, second)
    for name, instance in (("blue", blue), ("green", green)):
        for answer in instance.answers:
            print(f"{name:5} {answer.asked:6} pg_backend_pid = {answer.backend}: {str(answer.said).lower()}")
    print(f"advisory locks left hanging: {query(LOCKS)[0][0]}")
    for tick in (first, second):
        print(f"tick {tick:%H:%M}: {sum(mail.tick == tick for mail in receiver.mails)} of 12 mails")
    blue.engine.dispose()
    green.engine.dispose()


def is_now(query: Callable[[str], list[tuple[object, ...]]], receiver: Receiver, url: str) -> None:
    words = ["worker", "examples.evening_nudge.as_it_is:lq", "--ttl", str(TTL_SECONDS), "--log-level", "error"]
    env = {**os.environ, "LEASEQUEUE_URL": url, "NUDGE_SMTP": receiver.address, "NUDGE_WHEN": "* * * * * *"}
    locks = 0

    def pass_by(seconds: float) -> None:
        nonlocal locks
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            locks = max(locks, int(str(query(LOCKS)[0][0])))
            time.sleep(0.05)

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "leasequeue.cli.main", *words]
        return subprocess.Popen(command, env=env, start_new_session=True)

    print("two instances, a tick each second, 12 mails each; one instance is killed after 8 seconds", flush=True)
    blue, green = start(), start()
    try:
        pass_by(8)
        os.killpg(blue.pid, signal.SIGKILL)
        pass_by(5)
        lq = LeaseQueue()
        lq.configure(url=url)
        lq.schedules.pause(lq, "evening-nudge")
        lq.dispose()
        while query(LIVE)[0][0]:
            pass_by(0.1)
        pass_by(3)
        green.terminate()
        green.wait()
    finally:
        for instance in (blue, green):
            if instance.poll() is None:
                os.killpg(instance.pid, signal.SIGKILL)
            instance.wait()
    for outcome, reason, count in query(LEDGER):
        print(f"{count} ticks {outcome}{f': {reason}' if reason else ''}")
    changes = [reason for (reason,) in query(CHANGES)]
    print(f"{len(changes)} changes: {'; '.join(changes)}")
    ids = {(mail.tick, mail.recipient): set[str]() for mail in receiver.mails}
    for mail in receiver.mails:
        ids[mail.tick, mail.recipient].add(mail.message_id)
    by_tick = Counter(tick for tick, _ in ids)
    whole = sum(count == 12 for count in by_tick.values())
    print(f"{len(by_tick)} ticks were mailed, {whole} of them to all 12 subscribers")
    print(
        f"repeats: {len(receiver.mails) - len(ids)}, under another Message-ID: {sum(len(known) - 1 for known in ids.values())}"
    )
    print(f"advisory locks seen: {locks}")


def main() -> None:
    variants = {"was": was, "is": is_now}
    if sys.argv[1:] not in [[name] for name in variants]:
        sys.exit("usage: python -m examples.evening_nudge was|is")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="evening-nudge-", ignore_cleanup_errors=True)))
        server = stack.enter_context(embedded.start(folder / "postgres", temporary=True))
        url = server.ensure_database("nudge")
        engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
        stack.callback(engine.dispose)
        with engine.begin() as conn:
            schema.install(conn)
            conn.execute(text(TABLES))
            conn.execute(text(SUBSCRIBERS))
        receiver = Receiver().start()
        stack.callback(receiver.stop)
        os.environ["NUDGE_SMTP"] = receiver.address

        def query(statement: str) -> list[tuple[object, ...]]:
            with engine.begin() as conn:
                result = conn.execute(text(statement))
                return [tuple(row) for row in result] if result.returns_rows else []

        variants[sys.argv[1]](query, receiver, url)


if __name__ == "__main__":
    main()
