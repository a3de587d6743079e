-- take_ready
UPDATE "app".leasequeue_job SET state = 'l', holder = %(me)s, term = nextval('"app".leasequeue_term'),
    expires_at = clock_timestamp() + interval '1 day', attempt = attempt + 1, claimed_at = clock_timestamp(),
    unique_key = CASE WHEN unique_until = 's' THEN NULL ELSE unique_key END
WHERE id = (
    SELECT id FROM "app".leasequeue_job
    WHERE state IN ('r', 'g')
      AND available_at <= coalesce(%(now)s::timestamptz, now() + %(shift)s::float8 * interval '1 second')
      AND (%(queues)s::text[] IS NULL OR queue = ANY(%(queues)s::text[]))
    ORDER BY priority DESC, available_at, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, term, queue, task, args::text, attempt, abandoned, max_attempts,
    extract(epoch FROM coalesce(%(now)s::timestamptz, now() + %(shift)s::float8 * interval '1 second') - now())::float8,
    coalesce(start_by < coalesce(%(now)s::timestamptz, now() + %(shift)s::float8 * interval '1 second'), false),
    CASE WHEN workflow IS NOT NULL THEN jsonb_build_object('id', workflow, 'name', meta ->> 'flow', 'step', meta ->> 'step')
        ::text WHEN limit_key IS NOT NULL OR children IS NOT NULL THEN '' END;

-- list_live
SELECT id, queue, task, args::text, state::text, available_at::text,
    task = ANY(%(tasks)s::text[]) AND args = %(args)s::jsonb AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
FROM "app".leasequeue_job ORDER BY id;
