"""Planted errors: each line that ends in ``# wrong: word`` must be reported with that word, and no other. Never run."""

from __future__ import annotations

import datetime as dt

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from leasequeue import Job, LeaseQueue, current_job

lq = LeaseQueue()


@lq.task()
def send_reminder(user_id: int, channel: str = "email") -> bool:
    return True


@lq.task()
async def fetch(url: str) -> bytes:
    return b""


def sync(engine: Engine, session: Session, asession: AsyncSession, aconn: AsyncConnection) -> None:
    send_reminder.enqueue(session)  # wrong: user_id
    send_reminder.enqueue(session, "7")  # wrong: int
    send_reminder.enqueue(session, user=7)  # wrong: user
    send_reminder.enqueue(session, 7, "sms", 1)  # wrong: arguments
    send_reminder.enqueue(engine, 7)  # wrong: Engine
    send_reminder.enqueue(asession, 7)  # wrong: AsyncSession
    send_reminder.enqueue(aconn, 7)  # wrong: AsyncConnection
    send_reminder.enqueue(sessionmaker(engine), 7)  # wrong: sessionmaker
    send_reminder.enqueue(None, 7)  # wrong: None
    send_reminder.call("7")  # wrong: int
    send_reminder("7")  # wrong: int
    send_reminder.options(delay=5)  # wrong: timedelta
    send_reminder.options(priorty=5)  # wrong: priorty
    send_reminder.options(priority=5).enqueue(session, "7")  # wrong: int
    text: Job[str] = send_reminder.enqueue(session, 7)  # wrong: Job[bool]
    lq.enqueue_many(session, [send_reminder])  # wrong: Task[
    current_job().complete(asession)  # wrong: AsyncSession
    lq.enqueue_many(aconn, [send_reminder.call(7)])  # wrong: AsyncConnection
    with lq.abegin():  # wrong: __enter__
        pass
    print(text)


async def asynchronous(session: Session, asession: AsyncSession) -> None:
    await fetch.aenqueue(session, "u")  # wrong: Session
    await fetch.aenqueue(asession, 5)  # wrong: str
    await fetch.aenqueue(asession, url="u", other=1)  # wrong: other
    number: int = await fetch("u")  # wrong: bytes
    await send_reminder.enqueue(session, 7)  # wrong: Job[bool]
    await send_reminder.aenqueue(asession, channel=7, user_id=7)  # wrong: str
    async with lq.begin():  # wrong: __aenter__
        pass
    print(number)


@lq.task(timeout=30)  # wrong: timedelta
def bounded() -> None: ...


@lq.task(max_attempts=dt.timedelta(1))  # wrong: timedelta
def retried() -> None: ...
