-- read_job
SELECT CASE state WHEN 'r' THEN CASE WHEN available_at <= now() THEN 'ready' ELSE 'scheduled' END
        WHEN 'l' THEN 'leased' WHEN 'q' THEN 'suspect' ELSE 'waiting' END AS state,
    false AS ended, task, queue, attempt, CAST(NULL AS text) AS result, CAST(NULL AS text) AS error,
    CAST(progress AS text) AS progress, CAST(NULL AS text) AS retried_as
FROM "app".leasequeue_job WHERE id = CAST(%(id)s AS bigint)
UNION ALL
SELECT outcome, true, task, queue, attempt - abandoned, CAST(result AS text), error, CAST(meta -> 'progress' AS text),
    meta ->> 'retried_as'
FROM "app".leasequeue_finished WHERE id = CAST(%(id)s AS bigint);

-- read_failure
WITH found AS MATERIALIZED (
    SELECT attempt, error_type, traceback, failed_at FROM "app".leasequeue_failure
    WHERE job_id = CAST(%(id)s AS bigint) AND error_type <> 'LeaseLost' LIMIT 1000
)
SELECT error_type, traceback FROM found ORDER BY failed_at DESC, attempt DESC LIMIT 1;
