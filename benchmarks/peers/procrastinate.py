"""procrastinate, by ``scripts/run_procrastinate.py``."""

from __future__ import annotations

from benchmarks.peers.kinds import PythonPeer


class Procrastinate(PythonPeer):
    name = "procrastinate"
    packages = ("procrastinate==3.10.0", "psycopg[binary,pool]", "uvloop")
    settings = (
        "concurrency 30, pool 32, uvloop; prepared statements and LISTEN off and polling every 0.5 s behind pgbouncer"
    )
    pace = 600
    left_sql = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
    done_sql = (
        # Each job is updated twice: when it is taken, and when it is finished.
        "SELECT sum(n_tup_upd) / 2 FROM pg_stat_user_tables WHERE relname = 'procrastinate_jobs'"
    )
