-- admit
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(%(keys)s::text[], %(running)s::int[], %(priorities)s::smallint[], %(floors)s::float8[],
        %(floor_ids)s::bigint[], %(terms)s::bigint[], %(others)s::int[], %(rates)s::int[], %(seconds)s::float8[],
        %(quotas)s::int[]) AS given (key, running, priority, floor_at, floor_id, term, others, rate, seconds, quota)
), lane AS MATERIALIZED (
    SELECT priority FROM "app".leasequeue_lane WHERE queue = %(queue)s AND priority <> 0 UNION SELECT 0::smallint
    ORDER BY priority DESC
), k AS MATERIALIZED (
    SELECT given.*, used.*, coalesce(given.running, 2147483647) - used.used AS mine
    FROM given CROSS JOIN LATERAL (SELECT (count(*) + (SELECT count(*) FROM "app".leasequeue_job
                WHERE state = 'q' AND limit_key = given.key AND queue = %(queue)s))::int AS used,
            min(term) AS oldest, count(*) FILTER (WHERE queue <> %(queue)s)::int AS elsewhere
        FROM "app".leasequeue_job WHERE holder IS NOT NULL AND limit_key = given.key
            AND term >= CASE WHEN given.term > 0 AND (SELECT last_value FROM "app".leasequeue_term) >= %(term)s
                THEN given.term ELSE 0 END) AS used
), cand AS MATERIALIZED (
    SELECT k.key, one.id, one.task, one.priority, one.limit_max, one.rate_max, one.rate_seconds,
        row_number() OVER (PARTITION BY k.key ORDER BY one.priority DESC, one.available_at, one.id) AS turn
    FROM k CROSS JOIN LATERAL (
        SELECT job.id, job.task, lane.priority, job.available_at, job.limit_max, job.rate_max, job.rate_seconds
        FROM lane CROSS JOIN LATERAL (
            SELECT id, task, available_at, limit_max, rate_max, rate_seconds FROM "app".leasequeue_job WHERE limit_key = k.key AND queue = %(queue)s AND priority = lane.priority AND state = 'g'
          AND available_at <= statement_timestamp() AND (available_at, id) >= (
            CASE WHEN lane.priority = k.priority THEN to_timestamp(k.floor_at) ELSE '-infinity' END,
            CASE WHEN lane.priority = k.priority THEN k.floor_id ELSE 0 END)
            ORDER BY available_at, id LIMIT greatest(0, least(k.mine, k.quota)) FOR UPDATE SKIP LOCKED
        ) AS job LIMIT greatest(0, least(k.mine, k.quota))
    ) AS one
), pick AS MATERIALIZED (
    SELECT cand.id, cand.key FROM cand JOIN k ON k.key = cand.key
    WHERE cand.rate_max IS NULL AND cand.turn <= coalesce(k.running, cand.limit_max, 2147483647) - k.used
    ORDER BY cand.priority DESC, cand.turn LIMIT %(k)s
), rated AS MATERIALIZED (
    SELECT DISTINCT key FROM cand WHERE rate_max IS NOT NULL
), taken AS MATERIALIZED (
    SELECT k.*, coalesce(c.found, 0) AS found, coalesce(p.taken, 0) AS taken,
        least(k.mine, coalesce(k.running, c.limit_max, 2147483647) - k.used) AS fits, 0 AS blocked
    FROM k LEFT JOIN (
        SELECT key, count(*)::int AS found, max(limit_max) AS limit_max FROM cand GROUP BY key
    ) AS c ON c.key = k.key
    LEFT JOIN (SELECT key, count(*)::int AS taken FROM pick GROUP BY key) AS p ON p.key = k.key
), soon AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at, parked, whole)
    SELECT %(queue)s, t.key,
        CASE WHEN t.taken < least(t.fits, t.found) OR (t.taken = t.quota AND t.fits > t.taken) THEN clock_timestamp()
            WHEN t.fits > t.taken AND t.floor_at > '-infinity' THEN clock_timestamp() + interval '1 s'
            WHEN t.fits > t.taken AND t.blocked = 0 THEN clock_timestamp() + interval '100 ms'
            WHEN t.used = 0 AND t.fits <= 0 AND t.others = 0 THEN clock_timestamp() + interval '30 s'
            ELSE clock_timestamp() + interval '5 s' END,
        CASE WHEN t.fits <= t.taken THEN t.key END,
        t.found < t.quota AND t.fits > t.taken AND t.floor_at > '-infinity'
    FROM (SELECT * FROM taken WHERE key NOT IN (SELECT key FROM rated)) AS t
    WHERE t.taken < least(t.fits, t.found) OR (t.taken = t.quota AND t.fits > t.taken)
        OR (t.fits > t.taken AND t.floor_at > '-infinity')
        OR ((t.elsewhere > 0 OR t.others > 0 OR (t.fits > t.taken AND t.blocked = 0) OR (t.used = 0 AND t.fits <= 0))
            AND EXISTS (SELECT FROM "app".leasequeue_job
            WHERE limit_key = t.key AND queue = %(queue)s AND state = 'g' AND available_at <= statement_timestamp()
            OFFSET t.taken))
), u AS (
    UPDATE "app".leasequeue_job SET state = 'l', holder = %(me)s, term = (SELECT nextval('"app".leasequeue_term')), expires_at = clock_timestamp() + %(ttl)s * interval '1 second', attempt = attempt + 1, claimed_at = clock_timestamp(), unique_key = CASE WHEN unique_until = 's' THEN NULL ELSE unique_key END, meta = CASE WHEN unique_until = 's' THEN coalesce(meta, '{}') - 'unique_key' || jsonb_strip_nulls(jsonb_build_object('unique_key', unique_key)) ELSE meta END
    WHERE id = ANY(ARRAY(SELECT id FROM pick)) RETURNING id, term, task, args::text, attempt, abandoned, max_attempts, extract(epoch FROM available_at)::float8, priority, queue, cancel_requested_at IS NOT NULL, meta ->> 'tick', extract(epoch FROM start_by - clock_timestamp())::float8, CASE WHEN workflow IS NOT NULL THEN jsonb_build_object('id', workflow, 'name', meta ->> 'flow', 'step', meta ->> 'step')::text WHEN limit_key IS NOT NULL OR children IS NOT NULL THEN '' END, limit_key, limit_max, rate_max, rate_seconds
)
SELECT u.*, k.oldest FROM u JOIN k ON k.key = u.limit_key
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, key, NULL, NULL, NULL, NULL
FROM rated;

-- admit_one
WITH k AS MATERIALIZED (
    SELECT used.*, EXISTS (SELECT FROM "app".leasequeue_lane WHERE queue = %(queue)s AND priority <> 0) AS ranked
    FROM (SELECT (count(*) + (SELECT count(*) FROM "app".leasequeue_job
                WHERE state = 'q' AND limit_key = %(key)s AND queue = %(queue)s))::int AS used,
            min(term) AS oldest, count(*) FILTER (WHERE queue <> %(queue)s)::int AS elsewhere
        FROM "app".leasequeue_job WHERE holder IS NOT NULL AND limit_key = %(key)s
            AND term >= CASE WHEN %(key_term)s::bigint > 0 AND (SELECT last_value FROM "app".leasequeue_term) >= %(term)s
                THEN %(key_term)s::bigint ELSE 0 END) AS used
), cand AS MATERIALIZED (
    SELECT id, available_at, limit_max, rate_max FROM "app".leasequeue_job
    WHERE limit_key = %(key)s AND queue = %(queue)s AND priority = 0 AND state = 'g' AND available_at <= statement_timestamp()
      AND (available_at, id) >= (to_timestamp(%(floor_at)s), %(floor_id)s)
    ORDER BY available_at, id
    LIMIT (SELECT CASE WHEN ranked THEN 0 ELSE greatest(0, least(%(running)s::int - used, %(quota)s)) END FROM k)
    FOR UPDATE SKIP LOCKED
), u AS (
    UPDATE "app".leasequeue_job SET state = 'l', holder = %(me)s, term = (SELECT nextval('"app".leasequeue_term')), expires_at = clock_timestamp() + %(ttl)s * interval '1 second', attempt = attempt + 1, claimed_at = clock_timestamp(), unique_key = CASE WHEN unique_until = 's' THEN NULL ELSE unique_key END, meta = CASE WHEN unique_until = 's' THEN coalesce(meta, '{}') - 'unique_key' || jsonb_strip_nulls(jsonb_build_object('unique_key', unique_key)) ELSE meta END
    WHERE id = ANY(ARRAY(
        SELECT c.id FROM (
            SELECT id, limit_max, rate_max, row_number() OVER (ORDER BY available_at, id) AS turn FROM cand
        ) AS c WHERE c.rate_max IS NULL
            AND c.turn <= coalesce(%(running)s::int, c.limit_max, 2147483647) - (SELECT used FROM k))) RETURNING id, term, task, args::text, attempt, abandoned, max_attempts, extract(epoch FROM available_at)::float8, priority, queue, cancel_requested_at IS NOT NULL, meta ->> 'tick', extract(epoch FROM start_by - clock_timestamp())::float8, CASE WHEN workflow IS NOT NULL THEN jsonb_build_object('id', workflow, 'name', meta ->> 'flow', 'step', meta ->> 'step')::text WHEN limit_key IS NOT NULL OR children IS NOT NULL THEN '' END,
        limit_key, limit_max, rate_max, rate_seconds
)
SELECT u.*, k.oldest, k.ranked, k.used, k.elsewhere, c.*
FROM k CROSS JOIN (SELECT count(*)::int, max(limit_max), bool_or(rate_max IS NOT NULL) FROM cand) AS c LEFT JOIN u ON true;

-- admit_next
UPDATE "app".leasequeue_job SET state = 'l', holder = %(me)s, term = (SELECT nextval('"app".leasequeue_term')), expires_at = clock_timestamp() + %(ttl)s * interval '1 second', attempt = attempt + 1, claimed_at = clock_timestamp(), unique_key = CASE WHEN unique_until = 's' THEN NULL ELSE unique_key END, meta = CASE WHEN unique_until = 's' THEN coalesce(meta, '{}') - 'unique_key' || jsonb_strip_nulls(jsonb_build_object('unique_key', unique_key)) ELSE meta END
FROM (SELECT (count(*) + (SELECT count(*) FROM "app".leasequeue_job
                WHERE state = 'q' AND limit_key = %(key)s AND queue = %(queue)s))::int AS used,
            min(term) AS oldest, count(*) FILTER (WHERE queue <> %(queue)s)::int AS elsewhere
        FROM "app".leasequeue_job WHERE holder IS NOT NULL AND limit_key = %(key)s
            AND term >= CASE WHEN %(key_term)s::bigint > 0 AND (SELECT last_value FROM "app".leasequeue_term) >= %(term)s
                THEN %(key_term)s::bigint ELSE 0 END) AS k
WHERE id = (
    SELECT id FROM "app".leasequeue_job
    WHERE limit_key = %(key)s AND queue = %(queue)s AND priority = 0 AND state = 'g' AND available_at <= statement_timestamp()
      AND (available_at, id) >= (to_timestamp(%(floor_at)s), %(floor_id)s)
      AND NOT EXISTS (SELECT FROM "app".leasequeue_lane WHERE queue = %(queue)s AND priority <> 0)
    ORDER BY available_at, id LIMIT 1 FOR UPDATE SKIP LOCKED)
  AND rate_max IS NULL AND k.used < coalesce(%(running)s::int, limit_max, 2147483647)
RETURNING id, term, task, args::text, attempt, abandoned, max_attempts, extract(epoch FROM available_at)::float8, priority, queue, cancel_requested_at IS NOT NULL, meta ->> 'tick', extract(epoch FROM start_by - clock_timestamp())::float8, CASE WHEN workflow IS NOT NULL THEN jsonb_build_object('id', workflow, 'name', meta ->> 'flow', 'step', meta ->> 'step')::text WHEN limit_key IS NOT NULL OR children IS NOT NULL THEN '' END, limit_key, limit_max, rate_max, rate_seconds, k.oldest, k.used, k.elsewhere;

-- leave_wake
INSERT INTO "app".leasequeue_wake (queue, key, due_at, parked, whole)
SELECT %(queue)s, %(key)s, clock_timestamp() + %(seconds)s * interval '1 second',
    CASE WHEN %(parked)s::boolean THEN %(key)s END, %(whole)s
WHERE NOT %(seen)s OR EXISTS (SELECT FROM "app".leasequeue_job
    WHERE limit_key = %(key)s AND queue = %(queue)s AND state = 'g' AND available_at <= statement_timestamp());

-- succeed_before_next
WITH k AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
), d AS (
    DELETE FROM "app".leasequeue_job WHERE id = ANY(ARRAY(SELECT id FROM k)) AND children IS NULL RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END AS meta, term, limit_key
), b AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_bucket WHERE id = ANY(ARRAY(
        SELECT hashtext(limit_key) & 16383 FROM d WHERE limit_key IS NOT NULL)) ORDER BY id FOR UPDATE SKIP LOCKED
), freed AS MATERIALIZED (
    SELECT queue, limit_key, ((hashtext(limit_key) & 16383) IN (SELECT id FROM b)) IS TRUE
        AND NOT EXISTS (SELECT FROM "app".leasequeue_wake WHERE parked = limit_key) AS next
    FROM d WHERE limit_key IS NOT NULL GROUP BY queue, limit_key
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key) SELECT queue, limit_key FROM freed WHERE NOT next
), f AS (
    INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, result)
    SELECT d.id, queue, task, args, 'succeeded', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta,
        r.result::jsonb
    FROM d JOIN unnest(%(ids)s::bigint[], %(results)s::text[], %(kept)s::boolean[]) AS r (id, result, kept) ON r.id = d.id
    WHERE r.kept
)
SELECT d.id, d.queue, d.limit_key, coalesce(freed.next, false)
FROM d LEFT JOIN freed ON freed.queue = d.queue AND freed.limit_key = d.limit_key;
