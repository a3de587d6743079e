"""The script's side of benchmarks/peers/script.py, for asyncio; it needs nothing but the standard library."""

import asyncio
import os
import sys
import time

URL = os.environ["BENCH_URL"]
POOLED = bool(os.environ["BENCH_POOLED"])


def say(*words):
    print("@", *words, flush=True)


def started(number):
    """A stamped handler has begun."""
    say("stamp", number, repr(time.time()))


async def _serve(client):
    """Answer commands; ``client`` is an asynchronous context manager that yields (one, bulk, stamp)."""
    loop = asyncio.get_running_loop()
    async with client() as (one, bulk, stamp):
        say("ready")
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            word, number = line.split()
            count = int(number)
            try:
                begun = time.perf_counter()
                if word == "one":
                    for i in range(count):
                        await one(i)
                elif word == "bulk":
                    await bulk(count)
                else:
                    await stamp(count)
                    say("at", repr(time.time()))
                    continue
                say("seconds", time.perf_counter() - begun)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is what the report tells
                say("error", f"{type(error).__name__}:", *str(error).split())


def main(prepare, work, client, run=asyncio.run):
    """Do what the first argument says, with ``run`` to run a coroutine."""
    mode = sys.argv[1]
    if mode == "prepare":
        run(prepare())
    elif mode == "client":
        run(_serve(client))
    else:
        say("ready")
        if sys.stdin.readline():
            run(work())
