"""What a type checker must accept, with the types to find. tests/app/test_typing.py reads it; never run."""

from __future__ import annotations

import datetime as dt
from typing import Any, assert_type

import psycopg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from leasequeue import AsyncTask, Call, Job, LeaseQueue, Progress, Task, current_job
from leasequeue.context import JobContext

lq = LeaseQueue(imports=["app.tasks.*"], schema="app", lifespan=lambda lq: None)


@lq.task(queue="mail", aliases=("old",), max_attempts=8, timeout=dt.timedelta(seconds=30))
def send_reminder(user_id: int, channel: str = "email") -> bool:
    assert_type(current_job(), JobContext)
    return True


@lq.task(
    unique_key=lambda account: f"a{account}",
    unique="until_started",
    unique_for=dt.timedelta(hours=1),
    on_conflict="raise",
)
def bill(account: int) -> None: ...


@lq.task()
async def fetch(url: str) -> bytes:
    return b""


@lq.middleware
def with_app(ctx: JobContext, call_next: Any) -> Any:
    return call_next()


assert_type(send_reminder(7), bool)
assert_type(send_reminder.call(user_id=7), Call[bool])
assert_type(fetch.call("u"), Call[bytes])


def sync(conn: Connection, session: Session, scoped: scoped_session[Session], raw: psycopg.Connection[Any]) -> None:
    assert_type(send_reminder.enqueue(session, user_id=7), Job[bool])
    assert_type(fetch.enqueue(session, "u"), Job[bytes])
    send_reminder.enqueue(conn, 7, "sms")
    send_reminder.enqueue(scoped, 7)
    send_reminder.enqueue(raw, 7, channel="sms")
    send_reminder.enqueue(lq, 7)
    chosen = send_reminder.options(delay=dt.timedelta(minutes=5), priority=10, unique_key="u7")
    assert_type(chosen.enqueue(session, user_id=7), Job[bool])
    assert_type(
        lq.enqueue_many(session, [send_reminder.call(1), fetch.call(url="u")]),
        list[Job[Any]],
    )
    with lq.begin() as own:
        assert_type(own, Connection)
    current_job().complete(session, result={"sent": True})
    assert_type(send_reminder.enqueue(session, 7).result(dt.timedelta(seconds=1)), bool)
    assert_type(lq.job(7, send_reminder), Job[bool])
    assert_type(lq.job(7, task=fetch).result(), bytes)
    assert_type(lq.job(7), Job[Any])
    assert_type(lq.job(7).progress(), Progress | None)
    current_job().progress(1, 2, note="half")


def driver() -> None:
    import psycopg2

    raw = psycopg2.connect("")
    send_reminder.enqueue(raw, 7)


async def asynchronous(
    conn: AsyncConnection,
    session: AsyncSession,
    scoped: async_scoped_session[AsyncSession],
    raw: psycopg.AsyncConnection[Any],
) -> None:
    assert_type(await send_reminder.aenqueue(session, user_id=7), Job[bool])
    assert_type(await fetch.aenqueue(conn, "u"), Job[bytes])
    await send_reminder.aenqueue(scoped, 7)
    await send_reminder.aenqueue(raw, 7)
    await send_reminder.aenqueue(lq, 7)
    assert_type(await fetch("u"), bytes)
    await lq.aenqueue_many(session, [send_reminder.call(1)])
    async with lq.abegin() as own:
        assert_type(own, AsyncConnection)
    await current_job().acomplete(session)
    assert_type(await (await fetch.aenqueue(session, "u")).aresult(), bytes)


plain: Task[..., bool] = send_reminder
coroutine: AsyncTask[..., bytes] = fetch
