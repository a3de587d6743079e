-- draw
WITH sequence AS MATERIALIZED (
    SELECT name FROM (SELECT CAST(pg_get_serial_sequence('"app".leasequeue_job', 'id') AS regclass) AS name) AS own
    WHERE has_sequence_privilege(name, 'USAGE') AND has_column_privilege('"app".leasequeue_job', 'id', 'INSERT')
        AND NOT row_security_active('"app".leasequeue_job')
)
SELECT string_agg(CAST(nextval(name) AS text), ',') FROM sequence CROSS JOIN generate_series(1, CAST(%(count)s AS int));

-- copy
COPY "app".leasequeue_job (id, queue, task, args, priority, max_attempts, meta) FROM STDIN;

-- copy_dated
COPY "app".leasequeue_job (id, queue, task, args, priority, max_attempts, meta, available_at, start_by) FROM STDIN;
