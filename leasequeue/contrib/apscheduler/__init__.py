"""``LeaderGate``: many processes have the same APScheduler 3.11 scheduler; one of them fires, and each due time runs once.

    start() ──> paused ──elected──> accounts for what nobody settled ──> fires
                  ^                                                        │
                  └──────────────────── lost, resigned, stop() ────────────┘

A run begins with a row in the ledger (``leasequeue_tick``: the job's id, the due time), inserted in one transaction with the
fence of the leader's lease. Its key lets one insert through, whoever else believes to lead, and no row of an earlier term can
follow one of a later. What APScheduler drops has its row as well:

    fired       it runs                               caught_up   it runs, after a leader was elected later
    coalesced   ``coalesce``, or a later one runs     missed      ``misfire_grace_time``, or ``catch_up`` is ``none``
    overlapped  ``max_instances`` run already         paused      the job was paused while nobody led

The rows of those that do not run are written a moment later, by a thread of their own. A leader that is killed leaves gaps:
between its rows, and after the last one. The next leader walks each job's trigger over them, before it fires anything.

A row says that a run *began*: one that was cut off by a kill is not begun again. Effects that must be neither lost nor doubled
belong into a task (``lq.schedule``), or into one transaction with the row: see :func:`settles`.
"""

from __future__ import annotations

from leasequeue.errors import ConfigurationError

try:
    from leasequeue.contrib.apscheduler.gate import LeaderGate
    from leasequeue.contrib.apscheduler.runs import Run, current_run, settles
except ImportError as error:
    if not (error.name or "").startswith("apscheduler"):
        raise
    raise ConfigurationError(
        f"leasequeue.contrib.apscheduler needs APScheduler 3.11 ({error}): pip install 'leasequeue[apscheduler]'"
    ) from error

__all__ = ["LeaderGate", "Run", "current_run", "settles"]
