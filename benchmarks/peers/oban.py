"""oban, by ``scripts/run_oban.py``."""

from __future__ import annotations

from benchmarks.peers.kinds import PythonPeer


class Oban(PythonPeer):
    name = "oban"
    packages = ("oban==0.7.0", "psycopg[binary,pool]", "uvloop")
    settings = "limit 1,000, uvloop; prepared statements off behind pgbouncer, staging every 0.5 s there"
    pace = 4_000
    left_sql = "SELECT count(*) FROM oban_jobs WHERE state IN ('available', 'scheduled', 'executing', 'retryable')"
    done_sql = (
        # Each job is updated twice: when it is taken, and when it is completed.
        "SELECT sum(n_tup_upd) / 2 FROM pg_stat_user_tables WHERE relname = 'oban_jobs'"
    )
    fill_sql = (
        "INSERT INTO oban_jobs (queue, worker, max_attempts, priority, args, meta, tags) "
        "SELECT queue, worker, max_attempts, priority, args, '{}', tags "
        "FROM (SELECT * FROM oban_jobs LIMIT 1) AS one, generate_series(1, %s)"
    )
    at_least = (3, 12)
