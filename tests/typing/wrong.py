"""Planted errors: each line that ends in ``# wrong`` must be reported, and no other. Never run."""

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
    send_reminder.enqueue(session)  # wrong
    send_reminder.enqueue(session, "7")  # wrong
    send_reminder.enqueue(session, user=7)  # wrong
    send_reminder.enqueue(session, 7, "sms", 1)  # wrong
    send_reminder.enqueue(engine, 7)  # wrong
    send_reminder.enqueue(asession, 7)  # wrong
    send_reminder.enqueue(aconn, 7)  # wrong
    send_reminder.enqueue(sessionmaker(engine), 7)  # wrong
    send_reminder.enqueue(None, 7)  # wrong
    send_reminder.call("7")  # wrong
    send_reminder("7")  # wrong
    send_reminder.options(delay=5)  # wrong
    send_reminder.options(priorty=5)  # wrong
    send_reminder.options(priority=5).enqueue(session, "7")  # wrong
    text: Job[str] = send_reminder.enqueue(session, 7)  # wrong
    lq.enqueue_many(session, [send_reminder])  # wrong
    current_job().complete(asession)  # wrong
    print(text)


async def asynchronous(session: Session, asession: AsyncSession) -> None:
    await fetch.aenqueue(session, "u")  # wrong
    await fetch.aenqueue(asession, 5)  # wrong
    await fetch.aenqueue(asession, url="u", other=1)  # wrong
    number: int = await fetch("u")  # wrong
    print(number)


@lq.task(timeout=30)  # wrong
def bounded() -> None: ...


@lq.task(max_attempts=dt.timedelta(1))  # wrong
def retried() -> None: ...
