-- fence
WITH k AS MATERIALIZED (
    SELECT expires_at FROM "app".leasequeue_lease
    WHERE name = %(name)s::text AND slot = %(slot)s::smallint AND term = %(term)s::bigint
        AND holder = %(holder)s::text::uuid
    FOR KEY SHARE
), d AS MATERIALIZED (
    SELECT set_config('idle_in_transaction_session_timeout', least(greatest(1000, ceil(extract(epoch FROM k.expires_at - clock_timestamp()) * 1000)), nullif(extract(epoch FROM nullif(current_setting('idle_in_transaction_session_timeout', true), '')::interval) * 1000, 0))::bigint::text, true) AS idle
    FROM k WHERE k.expires_at > clock_timestamp()
)
SELECT 1 / count(idle) AS held, CAST(extract(epoch FROM now()) * 1000000 AS bigint) AS began FROM d;
