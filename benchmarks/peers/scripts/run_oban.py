"""https://oban.pro/docs/py: one queue with a limit of 1,000, uvloop as its own command has it."""

import asyncio
import contextlib
import logging

import talk
import uvloop
from oban import Oban, job
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

logging.disable(logging.ERROR)


@job()
async def noop(i):
    pass


@job()
async def stamp(number):
    talk.started(number)


@contextlib.asynccontextmanager
async def pool():
    plain = {"kwargs": {"prepare_threshold": None}} if talk.POOLED else {}
    async with AsyncConnectionPool(talk.URL, min_size=1, max_size=10, open=False, **plain) as made:
        yield made


async def prepare():
    async with pool() as made:
        await install(made)


async def work():
    patience = {"stager": {"interval": 0.5}} if talk.POOLED else {}
    async with pool() as made, Oban(pool=made, queues={"default": 1000}, **patience):
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def client():
    async with pool() as made, Oban(pool=made) as oban:
        yield (
            lambda i: oban.enqueue(noop.new(i)),
            lambda count: oban.enqueue_many(noop.new(i) for i in range(count)),
            lambda number: oban.enqueue(stamp.new(number)),
        )


talk.main(prepare, work, client, uvloop.run)
