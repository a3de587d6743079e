"""pg-boss, by ``scripts/run_pg-boss.mjs``."""

from __future__ import annotations

from benchmarks.peers.kinds import NodePeer


class PgBoss(NodePeer):
    name = "pg-boss"
    packages = ("pg-boss@12.38.0",)
    settings = "batches of 5,000, burst while a batch comes full, LISTEN; without LISTEN it polls every 0.5 s"
    pace = 25_000
    left_sql = "SELECT count(*) FROM pgboss.job WHERE state < 'completed' AND name IN ('noop', 'stamp')"
    done_sql = (
        # Each job is updated twice: when it is taken, and when it is completed.
        "SELECT sum(n_tup_upd) / 2 FROM pg_stat_user_tables WHERE schemaname = 'pgboss' AND relname LIKE 'job%'"
    )
