-- version
SELECT obj_description(to_regclass(quote_ident(CAST(%(schema)s AS text)) || '.leasequeue_job'), 'pg_class');
