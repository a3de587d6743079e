"""https://procrastinate.readthedocs.io: asynchronous tasks, thirty at once, a pool that has room for them."""

import contextlib
import logging

import procrastinate
import talk
import uvloop

logging.disable(logging.ERROR)
plain = {"kwargs": {"prepare_threshold": None}} if talk.POOLED else {}
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=talk.URL, min_size=4, max_size=32, **plain))


@app.task(name="noop")
async def noop(i):
    pass


@app.task(name="stamp")
async def stamp(number):
    talk.started(number)


async def prepare():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def work():
    how = {"listen_notify": False, "fetch_job_polling_interval": 0.5} if talk.POOLED else {}
    async with app.open_async():
        await app.run_worker_async(concurrency=30, **how)


@contextlib.asynccontextmanager
async def client():
    async with app.open_async():
        yield (
            lambda i: noop.defer_async(i=i),
            lambda count: noop.batch_defer_async(*({"i": i} for i in range(count))),
            lambda number: stamp.defer_async(number=number),
        )


talk.main(prepare, work, client, uvloop.run)
