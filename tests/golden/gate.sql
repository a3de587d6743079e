-- record
INSERT INTO "app".leasequeue_tick (schedule, due_at, outcome, reason, decided_at, decided_by)
SELECT CAST(%(name)s AS text), due.due_at, due.outcome, due.reason, clock_timestamp(), CAST(%(by)s AS text)
FROM unnest(CAST(%(due_at)s AS timestamptz[]), CAST(%(outcome)s AS text[]), CAST(%(reason)s AS text[]))
    AS due (due_at, outcome, reason)
ON CONFLICT DO NOTHING RETURNING due_at;

-- bound
SELECT set_config('statement_timeout', CAST(least(
    CAST(%(milliseconds)s AS bigint),
    nullif(CAST(extract(epoch FROM CAST(current_setting('statement_timeout') AS interval)) * 1000 AS bigint), 0)
) AS text), true) AS bound;

-- one
SELECT outcome, decided_by FROM "app".leasequeue_tick
WHERE schedule = CAST(%(name)s AS text) AND due_at = CAST(%(due_at)s AS timestamptz);

-- last
SELECT due_at FROM "app".leasequeue_tick
WHERE schedule = CAST(%(name)s AS text) AND outcome <> 'redefined' ORDER BY due_at DESC LIMIT CAST(%(limit)s AS integer);

-- defined
SELECT due_at, reason FROM "app".leasequeue_tick
WHERE schedule = CAST(%(name)s AS text) AND outcome = 'redefined' ORDER BY due_at DESC LIMIT 1;
