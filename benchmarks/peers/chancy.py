"""chancy, by ``scripts/run_chancy.py``."""

from __future__ import annotations

from benchmarks.peers.kinds import PythonPeer


class Chancy(PythonPeer):
    name = "chancy"
    packages = ("chancy==0.26.0", "psycopg[binary,pool]", "uvloop")
    settings = (
        "asynchronous executor, concurrency 2,000, eager polling, uvloop; "
        "notifications off and polling every 1 s behind pgbouncer"
    )
    pace = 4_000
    left_sql = "SELECT count(*) FROM chancy_jobs WHERE state NOT IN ('succeeded', 'failed')"
    done_sql = (
        # Each job is updated twice: when it is taken, and when it is finished.
        "SELECT sum(n_tup_upd) / 2 FROM pg_stat_user_tables WHERE relname = 'chancy_jobs'"
    )
    fill_sql = (
        "INSERT INTO chancy_jobs (id, queue, func, kwargs, limits, meta, priority, max_attempts) "
        "SELECT gen_random_uuid(), queue, func, kwargs, limits, meta, priority, max_attempts "
        "FROM (SELECT * FROM chancy_jobs LIMIT 1) AS one, generate_series(1, %s)"
    )
