-- idle
SELECT EXISTS (
    SELECT FROM unnest(%(queues)s::text[], %(priorities)s::smallint[], %(floors)s::float8[], %(floor_ids)s::bigint[])
        AS lane (queue, priority, floor_at, floor_id)
    WHERE (SELECT true FROM "app".leasequeue_job AS job
    WHERE job.queue = lane.queue AND job.priority = lane.priority AND job.state = 'r' AND job.available_at <= now()
      AND (job.available_at, job.id) >= (to_timestamp(lane.floor_at), lane.floor_id)
    ORDER BY job.available_at, job.id LIMIT 1)
) OR EXISTS (
    SELECT FROM unnest(%(wake_queues)s::text[], %(wake_floors)s::float8[], %(wake_floor_ids)s::bigint[])
        AS lane (queue, floor_at, floor_id)
    WHERE (SELECT true FROM "app".leasequeue_wake AS wake
    WHERE wake.queue = lane.queue AND wake.due_at <= now()
      AND (wake.due_at, wake.id) >= (to_timestamp(lane.floor_at), lane.floor_id)
    ORDER BY wake.due_at, wake.id LIMIT 1)
), (
    SELECT extract(epoch FROM min(at) - now())::float8 FROM (
        SELECT (
            SELECT available_at FROM "app".leasequeue_job AS job
            WHERE job.queue = lane.queue AND job.priority = lane.priority AND job.state = 'r' AND job.available_at > now()
              AND job.available_at <= now() + %(ahead)s * interval '1 second'
            ORDER BY job.available_at LIMIT 1)
        FROM unnest(%(queues)s::text[], %(priorities)s::smallint[]) AS lane (queue, priority)
        UNION ALL
        SELECT (
            SELECT due_at FROM "app".leasequeue_wake AS wake
            WHERE wake.queue = lane.queue AND wake.due_at > now()
              AND wake.due_at <= now() + %(ahead)s * interval '1 second'
            ORDER BY wake.due_at LIMIT 1)
        FROM unnest(%(wake_queues)s::text[]) AS lane (queue)
    ) AS next (at)
);
