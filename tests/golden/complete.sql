-- complete_held
WITH k AS 
(SELECT "app".leasequeue_job.id AS id 
FROM "app".leasequeue_job 
WHERE "app".leasequeue_job.id = %(p_id)s AND "app".leasequeue_job.term = %(p_term)s AND "app".leasequeue_job.holder = CAST(%(p_holder)s AS UUID) AND "app".leasequeue_job.state = 'l' AND "app".leasequeue_job.children IS NULL AND "app".leasequeue_job.limit_key IS NULL FOR UPDATE), 
d AS 
(DELETE FROM "app".leasequeue_job USING k WHERE "app".leasequeue_job.id = k.id RETURNING "app".leasequeue_job.id, "app".leasequeue_job.queue, "app".leasequeue_job.task, "app".leasequeue_job.args, "app".leasequeue_job.attempt, "app".leasequeue_job.abandoned, "app".leasequeue_job.created_at, "app".leasequeue_job.claimed_at, CASE WHEN ("app".leasequeue_job.cancel_requested_at IS NULL) THEN "app".leasequeue_job.meta ELSE coalesce("app".leasequeue_job.meta, CAST('{}' AS JSONB)) || jsonb_build_object('cancel_requested_at', "app".leasequeue_job.cancel_requested_at) END AS meta, CASE WHEN current_setting('idle_in_transaction_session_timeout', true) IS NOT NULL THEN set_config('idle_in_transaction_session_timeout', least(greatest(1000, ceil(extract(epoch FROM leasequeue_job.expires_at - clock_timestamp()) * 1000)), nullif(extract(epoch FROM nullif(current_setting('idle_in_transaction_session_timeout', true), '')::interval) * 1000, 0))::bigint::text, true) ELSE '' END AS idle, CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', least(greatest(1000, ceil(extract(epoch FROM leasequeue_job.expires_at - clock_timestamp()) * 1000)), nullif(extract(epoch FROM nullif(current_setting('transaction_timeout', true), '')::interval) * 1000, 0))::bigint::text, true) ELSE '' END AS whole), 
proof AS 
(SELECT 1 / count(*) AS held 
FROM d)
 INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, result, meta) SELECT d.id, d.queue, d.task, d.args, 'succeeded', d.attempt, d.abandoned, d.created_at, d.claimed_at, CAST(%(p_result)s AS JSONB) AS anon_1, d.meta 
FROM proof LEFT OUTER JOIN d ON true 
WHERE proof.held = CASE WHEN CAST(%(p_keep)s AS BOOLEAN) THEN 1 ELSE 0 END;

-- hold
WITH k AS MATERIALIZED (
    SELECT id, expires_at FROM "app".leasequeue_job
    WHERE id = %(id)s::bigint AND state = 'l' AND holder = %(holder)s::text::uuid AND term = %(term)s::bigint
    FOR UPDATE
)
SELECT 1 / count(*), max(CASE WHEN current_setting('idle_in_transaction_session_timeout', true) IS NOT NULL THEN set_config('idle_in_transaction_session_timeout', least(greatest(1000, ceil(extract(epoch FROM leasequeue_job.expires_at - clock_timestamp()) * 1000)), nullif(extract(epoch FROM nullif(current_setting('idle_in_transaction_session_timeout', true), '')::interval) * 1000, 0))::bigint::text, true) ELSE '' END), max(CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', least(greatest(1000, ceil(extract(epoch FROM leasequeue_job.expires_at - clock_timestamp()) * 1000)), nullif(extract(epoch FROM nullif(current_setting('transaction_timeout', true), '')::interval) * 1000, 0))::bigint::text, true) ELSE '' END)
FROM k AS leasequeue_job;
