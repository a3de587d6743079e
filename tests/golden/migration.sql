-- schema_exists
SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = :schema);

-- bound_wait
SELECT set_config('lock_timeout', :wait, true);

-- create
CREATE TABLE IF NOT EXISTS "app".leasequeue_alembic_version (version_num varchar(32) NOT NULL, CONSTRAINT leasequeue_alembic_version_pkc PRIMARY KEY (version_num));

-- lock
LOCK TABLE "app".leasequeue_alembic_version IN SHARE ROW EXCLUSIVE MODE;

-- forget
DELETE FROM "app".leasequeue_alembic_version;

-- stamp
INSERT INTO "app".leasequeue_alembic_version (version_num) VALUES ('0001');
