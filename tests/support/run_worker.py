"""A supervised worker as a process of its own: ``python -m tests.support.run_worker`` with the options on stdin."""

from __future__ import annotations

import sys

from leasequeue.worker.options import WorkerOptions
from leasequeue.worker.supervisor import main

if __name__ == "__main__":
    options = WorkerOptions.from_json(sys.stdin.readline())
    sys.exit(main(options))
