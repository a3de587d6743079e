"""pgqueuer, by ``scripts/run_pgqueuer.py``."""

from __future__ import annotations

from benchmarks.peers.kinds import PythonPeer


class PgQueuer(PythonPeer):
    name = "pgqueuer"
    packages = ("pgqueuer[asyncpg]==1.6.0", "uvloop")
    settings = "asyncpg, uvloop, batches of 500; statement cache off and polling every 0.5 s behind pgbouncer"
    pace = 15_000
    left_sql = "SELECT count(*) FROM pgqueuer"
    done_sql = "SELECT sum(n_tup_del) FROM pg_stat_user_tables WHERE relname = 'pgqueuer'"
