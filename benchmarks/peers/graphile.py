"""graphile-worker, by ``scripts/run_graphile-worker.mjs``."""

from __future__ import annotations

from benchmarks.peers.kinds import NodePeer


class GraphileWorker(NodePeer):
    name = "graphile-worker"
    packages = ("graphile-worker@0.18.0",)
    settings = (
        "local queue 500, concurrency 24, pool 25, completions batched; "
        "prepared statements off and polling every 0.5 s behind pgbouncer"
    )
    pace = 40_000
    left_sql = "SELECT count(*) FROM graphile_worker._private_jobs"
    done_sql = "SELECT sum(n_tup_del) FROM pg_stat_user_tables WHERE relname = '_private_jobs'"
