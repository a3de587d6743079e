-- write_progress
WITH k AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE "app".leasequeue_job AS job
SET progress = said.value::jsonb || jsonb_build_object('at', clock_timestamp())
FROM unnest(%(ids)s::bigint[], %(values)s::text[]) AS said (id, value)
WHERE job.id = ANY(ARRAY(SELECT id FROM k)) AND said.id = job.id RETURNING job.id;
