"""https://tkte.ch/chancy: the asynchronous executor, with room for 2,000 jobs."""

import contextlib
import logging

import talk
import uvloop
from chancy import Chancy, Queue, Worker, job

log = logging.getLogger("chancy")
log.setLevel(logging.ERROR)


def made():
    return Chancy(talk.URL, log=log, notifications=not talk.POOLED)


@job()
async def noop(*, i):
    pass


@job()
async def stamp(*, number):
    talk.started(number)


async def prepare():
    async with made() as chancy:
        await chancy.migrate()
        await chancy.declare(
            Queue("default", concurrency=2000, executor=Chancy.Executor.Async, polling_interval=1, eager_polling=True)
        )


async def work():
    async with made() as chancy, Worker(chancy) as worker:
        await worker.wait_for_shutdown()


@contextlib.asynccontextmanager
async def client():
    async with made() as chancy:

        async def bulk(count):
            async for _ in chancy.push_many([noop.job.with_kwargs(i=i) for i in range(count)], batch_size=5000):
                pass

        yield (
            lambda i: chancy.push(noop.job.with_kwargs(i=i)),
            bulk,
            lambda number: chancy.push(stamp.job.with_kwargs(number=number)),
        )


talk.main(prepare, work, client, uvloop.run)
