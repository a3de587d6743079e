"""leasequeue's enqueuing side, as a process of its own like the peers': ``run_leasequeue TASK client``."""

from __future__ import annotations

import os
import sys
import time

from benchmarks import app, ground
from leasequeue import Task


def main() -> None:
    tasks: dict[str, Task[..., None]] = {
        "noop": app.noop, "anoop": app.anoop, "bare_noop": app.bare_noop, "bare_anoop": app.bare_anoop,
    }  # fmt: skip
    task = tasks[sys.argv[1]]
    mark = app.amark if task is app.anoop else app.mark
    with ground.connect(os.environ["BENCH_URL"]) as conn:
        _say("ready")
        for line in sys.stdin:
            word, number = line.split()
            count = int(number)
            begun = time.perf_counter()
            if word == "one":
                for i in range(count):
                    task.enqueue(conn, i)
            elif word == "bulk":
                app.lq.enqueue_many(conn, [task.call(i) for i in range(count)])
            else:
                mark.enqueue(conn, count)
                _say("at", repr(time.time()))
                continue
            _say("seconds", repr(time.perf_counter() - begun))


def _say(*words: str) -> None:
    print("@", *words, flush=True)


if __name__ == "__main__":
    main()
