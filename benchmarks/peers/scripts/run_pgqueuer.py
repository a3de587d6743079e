"""https://pgqueuer.readthedocs.io: asyncpg, uvloop, large batches."""

import contextlib
from datetime import timedelta

import asyncpg
import talk
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries


async def connect():
    # pgbouncer in transaction mode has no room for the driver's prepared statements (asyncpg's FAQ).
    return await asyncpg.connect(talk.URL, **({"statement_cache_size": 0} if talk.POOLED else {}))


async def prepare():
    await Queries(AsyncpgDriver(await connect())).install()


async def work():
    pgq = PgQueuer(AsyncpgDriver(await connect()))

    @pgq.entrypoint("noop")
    async def noop(job):
        pass

    @pgq.entrypoint("stamp")
    async def stamp(job):
        talk.started(job.payload.decode())

    # Without LISTEN this timeout is how often it polls.
    patience = {"dequeue_timeout": timedelta(seconds=0.5)} if talk.POOLED else {}
    await pgq.run(batch_size=500, **patience)


@contextlib.asynccontextmanager
async def client():
    queries = Queries(AsyncpgDriver(await connect()))
    yield (
        lambda i: queries.enqueue("noop", b"%d" % i),
        lambda count: queries.enqueue(["noop"] * count, [b"%d" % i for i in range(count)], [0] * count),
        lambda number: queries.enqueue("stamp", b"%d" % number),
    )


talk.main(prepare, work, client, uvloop.run)
