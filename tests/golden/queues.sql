-- pause
WITH asked AS MATERIALIZED (
    SELECT coalesce(CAST(%(resume_at)s AS timestamptz), clock_timestamp() + CAST(%(seconds)s AS float8) * interval '1 second')
        AS resume_at
), was AS (
    SELECT FROM "app".leasequeue_queue AS q WHERE name = CAST(%(name)s AS text) AND q.paused_at IS NOT NULL AND (q.resume_at IS NULL OR q.resume_at > clock_timestamp())
), u AS (
    INSERT INTO "app".leasequeue_queue AS q (name, paused_at, resume_at, updated_by)
    SELECT CAST(%(name)s AS text), clock_timestamp(), resume_at, CAST(%(by)s AS text)
    FROM asked WHERE resume_at IS NULL OR resume_at > clock_timestamp()
    ON CONFLICT (name) DO UPDATE SET resume_at = excluded.resume_at, updated_by = excluded.updated_by,
        paused_at = CASE WHEN q.paused_at IS NOT NULL AND (q.resume_at IS NULL OR q.resume_at > clock_timestamp()) THEN q.paused_at ELSE excluded.paused_at END
    RETURNING resume_at
)
SELECT NOT EXISTS (SELECT FROM was), CAST(extract(epoch FROM resume_at) AS float8) FROM u;

-- resume
WITH k AS MATERIALIZED (
    SELECT name, q.paused_at IS NOT NULL AND (q.resume_at IS NULL OR q.resume_at > clock_timestamp()) AS paused FROM "app".leasequeue_queue AS q
    WHERE name = CAST(%(name)s AS text) AND paused_at IS NOT NULL FOR UPDATE
)
UPDATE "app".leasequeue_queue AS q SET paused_at = NULL, resume_at = NULL, updated_by = CAST(%(by)s AS text)
FROM k WHERE q.name = k.name RETURNING k.paused;
