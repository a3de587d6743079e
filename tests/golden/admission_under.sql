-- admit_under
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(%(keys)s::text[], %(running)s::int[], %(priorities)s::smallint[], %(floors)s::float8[],
        %(floor_ids)s::bigint[], %(terms)s::bigint[], %(others)s::int[], %(rates)s::int[], %(seconds)s::float8[],
        %(quotas)s::int[]) AS given (key, running, priority, floor_at, floor_id, term, others, rate, seconds, quota)
), lane AS MATERIALIZED (
    SELECT priority FROM "app".leasequeue_lane WHERE queue = %(queue)s AND priority <> 0 UNION SELECT 0::smallint
    ORDER BY priority DESC
), above AS MATERIALIZED (
    SELECT a.name, a.rate, a.seconds, spent.spent, spent.first_start, a.held,
        CASE WHEN a.held THEN greatest(0, least(coalesce(a.running, 2147483647) - used.used, coalesce(a.rate - spent.spent, 2147483647)))
            ELSE 0 END AS free
    FROM unnest(%(above)s::text[], %(held)s::boolean[], %(above_running)s::int[], %(above_rates)s::int[],
        %(above_seconds)s::float8[]) AS a (name, held, running, rate, seconds)
    CROSS JOIN LATERAL (SELECT count(*)::int AS used FROM "app".leasequeue_job
        WHERE holder IS NOT NULL AND limit_key IS NOT NULL
            AND CASE WHEN a.name LIKE 'task:%%' THEN task = substr(a.name, 6) ELSE queue = substr(a.name, 7) END) AS used
    CROSS JOIN LATERAL (SELECT coalesce(sum(start.count), 0)::int AS spent, min(start.at) AS first_start
        FROM "app".leasequeue_admission AS start
        WHERE start.name = a.name AND start.at > clock_timestamp() - a.seconds * interval '1 second') AS spent
), k AS MATERIALIZED (
    SELECT counted.*, CASE WHEN others > 0 THEN greatest(0, free - others) ELSE free END AS mine
    FROM (
        SELECT given.key, given.priority, given.floor_at, given.floor_id, given.term, given.others, given.quota,
            bounds.running, bounds.rate, bounds.seconds, used.*, spent.spent, spent.first_start,
            greatest(0, least(coalesce(bounds.running, 2147483647) - used.used, coalesce(bounds.rate - spent.spent, 2147483647))) AS free
        FROM given LEFT JOIN LATERAL (
            SELECT limit_max, rate_max, rate_seconds FROM "app".leasequeue_job AS job
            WHERE job.limit_key = given.key AND job.queue = %(queue)s AND job.state = 'g'
                AND job.available_at <= statement_timestamp()
            ORDER BY job.priority DESC, job.available_at, job.id LIMIT 1
        ) AS head ON true
        CROSS JOIN LATERAL (SELECT coalesce(given.running, head.limit_max) AS running,
            CASE WHEN given.key = ANY(%(above)s::text[]) THEN NULL ELSE coalesce(given.rate, head.rate_max) END AS rate,
            CASE WHEN given.rate IS NULL THEN head.rate_seconds ELSE given.seconds END AS seconds) AS bounds
        CROSS JOIN LATERAL (SELECT (count(*) + (SELECT count(*) FROM "app".leasequeue_job
                WHERE state = 'q' AND limit_key = given.key AND queue = %(queue)s))::int AS used,
            min(term) AS oldest, count(*) FILTER (WHERE queue <> %(queue)s)::int AS elsewhere
        FROM "app".leasequeue_job WHERE holder IS NOT NULL AND limit_key = given.key
            AND term >= CASE WHEN given.term > 0 AND (SELECT last_value FROM "app".leasequeue_term) >= %(term)s
                THEN given.term ELSE 0 END) AS used
        CROSS JOIN LATERAL (SELECT coalesce(sum(start.count), 0)::int AS spent, min(start.at) AS first_start
        FROM "app".leasequeue_admission AS start
        WHERE start.name = given.key AND start.at > clock_timestamp() - bounds.seconds * interval '1 second') AS spent
    ) AS counted
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
), fits AS (
    SELECT cand.*, task.name AS task_name, task.free AS task_free,
        row_number() OVER (PARTITION BY cand.task ORDER BY cand.priority DESC, cand.turn, cand.key) AS of_task
    FROM cand LEFT JOIN above AS task ON task.name = 'task:' || cand.task
), judged AS MATERIALIZED (
    SELECT fits.*, CASE WHEN task_name IS NOT NULL AND of_task > task_free THEN task_name
        WHEN queue.name IS NOT NULL AND count(*) FILTER (WHERE task_name IS NULL OR of_task <= task_free)
            OVER (ORDER BY priority DESC, turn, key ROWS UNBOUNDED PRECEDING) > queue.free THEN queue.name END AS blocked_by
    FROM fits LEFT JOIN above AS queue ON queue.name = 'queue:' || %(queue)s
), pick AS MATERIALIZED (
    SELECT id, key, task FROM judged WHERE blocked_by IS NULL ORDER BY priority DESC, turn, key LIMIT %(k)s
), taken AS MATERIALIZED (
    SELECT k.*, coalesce(c.found, 0) AS found, coalesce(p.taken, 0) AS taken,
        k.mine - coalesce(c.blocked, 0) AS fits, coalesce(c.blocked, 0) AS blocked
    FROM k LEFT JOIN (
        SELECT key, count(*) FILTER (WHERE blocked_by IS NULL)::int AS found,
            count(*) FILTER (WHERE blocked_by IS NOT NULL)::int AS blocked FROM judged GROUP BY key
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
    FROM taken AS t
    WHERE t.taken < least(t.fits, t.found) OR (t.taken = t.quota AND t.fits > t.taken)
        OR (t.fits > t.taken AND t.floor_at > '-infinity')
        OR ((t.elsewhere > 0 OR t.others > 0 OR (t.fits > t.taken AND t.blocked = 0) OR (t.used = 0 AND t.fits <= 0))
            AND EXISTS (SELECT FROM "app".leasequeue_job
            WHERE limit_key = t.key AND queue = %(queue)s AND state = 'g' AND available_at <= statement_timestamp()
            OFFSET t.taken))
), park AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at, parked)
    SELECT DISTINCT ON (j.key) %(queue)s, j.key,
        CASE WHEN NOT a.held THEN clock_timestamp() + interval '20 ms'
            WHEN a.rate <= a.spent + (SELECT count(*) FROM pick
                    WHERE a.name IN ('task:' || pick.task, 'queue:' || %(queue)s))
                THEN coalesce(a.first_start, clock_timestamp()) + a.seconds * interval '1 second' + interval '1 ms'
            ELSE clock_timestamp() + interval '5 s' END,
        CASE WHEN a.held THEN a.name END
    FROM judged AS j JOIN above AS a ON a.name = j.blocked_by ORDER BY j.key, j.turn
), rated AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT %(queue)s, t.key, coalesce(t.first_start, clock_timestamp()) + t.seconds * interval '1 second' + interval '1 ms'
    FROM taken AS t WHERE t.rate <= t.spent + t.taken
), room AS MATERIALIZED (
    SELECT a.name, greatest(0, a.free - (SELECT count(*) FROM pick
        WHERE a.name IN ('task:' || pick.task, 'queue:' || %(queue)s))) AS free FROM above AS a
), unpark AS (
    UPDATE "app".leasequeue_wake SET parked = NULL, due_at = clock_timestamp(), given = true WHERE id = ANY(
        ARRAY(SELECT w.id FROM taken AS t JOIN "app".leasequeue_wake AS w ON w.parked = t.key
            WHERE t.free > 0 AND t.others > 0 AND w.queue <> %(queue)s FOR UPDATE OF w SKIP LOCKED)
        || ARRAY(SELECT w.id FROM room CROSS JOIN LATERAL (
            SELECT id FROM "app".leasequeue_wake WHERE parked = room.name AND queue = %(queue)s
            ORDER BY id LIMIT room.free FOR UPDATE SKIP LOCKED) AS w)
        || ARRAY(SELECT w.id FROM room CROSS JOIN LATERAL (
            SELECT id FROM "app".leasequeue_wake WHERE parked = room.name AND queue <> %(queue)s
            ORDER BY id LIMIT room.free FOR UPDATE SKIP LOCKED) AS w))
), admitted AS (
    INSERT INTO "app".leasequeue_admission (name, at, count, until)
    SELECT t.key, clock_timestamp(), t.taken, clock_timestamp() + 2 * t.seconds * interval '1 second' FROM taken AS t
    WHERE t.rate IS NOT NULL AND t.taken > 0 AND NOT t.key = ANY(%(above)s::text[])
    UNION ALL SELECT a.name, clock_timestamp(), count(*), clock_timestamp() + 2 * a.seconds * interval '1 second'
    FROM above AS a JOIN pick ON a.name IN ('task:' || pick.task, 'queue:' || %(queue)s)
    WHERE a.rate IS NOT NULL GROUP BY a.name, a.seconds
), old AS (
    DELETE FROM "app".leasequeue_admission WHERE id = ANY(ARRAY(
        SELECT a.id FROM "app".leasequeue_admission AS a
        JOIN (SELECT key AS name, seconds FROM k UNION ALL SELECT name, seconds FROM above) AS r ON r.name = a.name
        WHERE a.at < clock_timestamp() - 2 * r.seconds * interval '1 second' LIMIT 200 FOR UPDATE OF a SKIP LOCKED))
), u AS (
    UPDATE "app".leasequeue_job SET state = 'l', holder = %(me)s, term = (SELECT nextval('"app".leasequeue_term')), expires_at = clock_timestamp() + %(ttl)s * interval '1 second', attempt = attempt + 1, claimed_at = clock_timestamp(), unique_key = CASE WHEN unique_until = 's' THEN NULL ELSE unique_key END, meta = CASE WHEN unique_until = 's' THEN coalesce(meta, '{}') - 'unique_key' || jsonb_strip_nulls(jsonb_build_object('unique_key', unique_key)) ELSE meta END
    WHERE id = ANY(ARRAY(SELECT id FROM pick)) RETURNING id, term, task, args::text, attempt, abandoned, max_attempts, extract(epoch FROM available_at)::float8, priority, queue, cancel_requested_at IS NOT NULL, meta ->> 'tick', extract(epoch FROM start_by - clock_timestamp())::float8, CASE WHEN workflow IS NOT NULL THEN jsonb_build_object('id', workflow, 'name', meta ->> 'flow', 'step', meta ->> 'step')::text WHEN limit_key IS NOT NULL OR children IS NOT NULL THEN '' END, limit_key, limit_max, rate_max, rate_seconds
)
SELECT u.*, k.oldest FROM u JOIN k ON k.key = u.limit_key;
