-- complete_held
WITH k AS (
    SELECT id FROM "app".leasequeue_job
    WHERE id = %(id)s::bigint AND state = 'l' AND holder = %(holder)s::text::uuid AND term = %(term)s::bigint
        AND children IS NULL AND limit_key IS NULL
    FOR UPDATE
), d AS (
    DELETE FROM "app".leasequeue_job USING k WHERE leasequeue_job.id = k.id
    RETURNING leasequeue_job.id, queue, task, args, attempt, abandoned, created_at, claimed_at,
        CASE WHEN leasequeue_job.cancel_requested_at IS NULL THEN leasequeue_job.meta ELSE
        coalesce(leasequeue_job.meta, '{}'::jsonb)
            || jsonb_build_object('cancel_requested_at', leasequeue_job.cancel_requested_at) END AS meta,
        CASE WHEN current_setting('idle_in_transaction_session_timeout', true) IS NOT NULL THEN set_config('idle_in_transaction_session_timeout', least(greatest(1000, ceil(extract(epoch FROM leasequeue_job.expires_at - clock_timestamp()) * 1000)), nullif(extract(epoch FROM nullif(current_setting('idle_in_transaction_session_timeout', true), '')::interval) * 1000, 0))::bigint::text, true) ELSE '' END AS idle,
        CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', least(greatest(1000, ceil(extract(epoch FROM leasequeue_job.expires_at - clock_timestamp()) * 1000)), nullif(extract(epoch FROM nullif(current_setting('transaction_timeout', true), '')::interval) * 1000, 0))::bigint::text, true) ELSE '' END AS whole
), proof AS (
    SELECT 1 / count(*) AS held FROM d
)
INSERT INTO "app".leasequeue_finished
    (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, result, meta)
SELECT d.id, d.queue, d.task, d.args, 'succeeded', d.attempt, d.abandoned, d.created_at, d.claimed_at,
    %(result)s::text::jsonb, d.meta
FROM proof LEFT JOIN d ON true
WHERE proof.held = CASE WHEN %(keep)s::boolean THEN 1 ELSE 0 END;

-- hold
WITH k AS MATERIALIZED (
    SELECT id, expires_at FROM "app".leasequeue_job
    WHERE id = %(id)s::bigint AND state = 'l' AND holder = %(holder)s::text::uuid AND term = %(term)s::bigint
    FOR UPDATE
)
SELECT 1 / count(*), max(CASE WHEN current_setting('idle_in_transaction_session_timeout', true) IS NOT NULL THEN set_config('idle_in_transaction_session_timeout', least(greatest(1000, ceil(extract(epoch FROM leasequeue_job.expires_at - clock_timestamp()) * 1000)), nullif(extract(epoch FROM nullif(current_setting('idle_in_transaction_session_timeout', true), '')::interval) * 1000, 0))::bigint::text, true) ELSE '' END), max(CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', least(greatest(1000, ceil(extract(epoch FROM leasequeue_job.expires_at - clock_timestamp()) * 1000)), nullif(extract(epoch FROM nullif(current_setting('transaction_timeout', true), '')::interval) * 1000, 0))::bigint::text, true) ELSE '' END)
FROM k AS leasequeue_job;
