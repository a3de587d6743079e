-- fence
WITH k AS MATERIALIZED 
(SELECT "app".leasequeue_lease.expires_at AS expires_at 
FROM "app".leasequeue_lease 
WHERE "app".leasequeue_lease.name = %(p_name)s AND "app".leasequeue_lease.slot = CAST(%(p_slot)s AS SMALLINT) AND "app".leasequeue_lease.term = %(p_term)s AND "app".leasequeue_lease.holder = CAST(%(p_holder)s AS UUID) FOR KEY SHARE), 
d AS MATERIALIZED 
(SELECT set_config('idle_in_transaction_session_timeout', least(greatest(1000, ceil(extract(epoch FROM k.expires_at - clock_timestamp()) * 1000)), nullif(extract(epoch FROM nullif(current_setting('idle_in_transaction_session_timeout', true), '')::interval) * 1000, 0))::bigint::text, true) AS idle 
FROM k 
WHERE k.expires_at > clock_timestamp())
 SELECT 1 / count(idle) AS held, CAST(extract(epoch FROM now()) * 1000000 AS bigint) AS began 
FROM d;
