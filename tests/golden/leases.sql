-- create
WITH l AS (
    INSERT INTO "app".leasequeue_lease (name, slot, holder, term, owner, acquired_at, renewed_at, expires_at, slots)
    SELECT %(name)s, missing.slot, %(holder)s, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, %(owner)s, clock_timestamp(), clock_timestamp(), clock_timestamp() + %(ttl)s * interval '1 second', %(slots)s
    FROM (
        SELECT each.slot FROM generate_series(0, %(slots)s - 1) AS each (slot)
        WHERE NOT EXISTS (SELECT FROM "app".leasequeue_lease AS there WHERE there.name = %(name)s AND there.slot = each.slot)
        ORDER BY each.slot LIMIT 1
    ) AS missing
    WHERE NOT EXISTS (SELECT FROM "app".leasequeue_lease AS there WHERE there.name = %(name)s AND there.slots <> %(slots)s)
    ON CONFLICT DO NOTHING
    RETURNING slot, term, holder, owner
), e AS (
    INSERT INTO "app".leasequeue_lease_event (name, slot, event, holder, term, owner, at)
    SELECT %(name)s, slot, 'acquired', holder, term, owner, clock_timestamp() FROM l
)
SELECT slot, term FROM l;

-- take
WITH k AS MATERIALIZED (
    SELECT name, slot, holder, term, owner, expires_at FROM "app".leasequeue_lease
    WHERE name = %(name)s AND slots = %(slots)s AND slot < slots AND ((holder IS NULL AND expires_at IS NULL) OR expires_at <= clock_timestamp())
    ORDER BY slot LIMIT 1 FOR UPDATE SKIP LOCKED
), l AS (
    UPDATE "app".leasequeue_lease AS lease
    SET holder = %(holder)s, owner = %(owner)s, term = greatest(k.term + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint),
        acquired_at = clock_timestamp(), renewed_at = clock_timestamp(), expires_at = clock_timestamp() + %(ttl)s * interval '1 second'
    FROM k WHERE lease.name = k.name AND lease.slot = k.slot
    RETURNING lease.slot, lease.term, lease.holder, lease.owner, k.holder AS was, k.term AS was_term, k.owner AS was_owner,
        k.expires_at AS was_until
), e AS (
    INSERT INTO "app".leasequeue_lease_event (name, slot, event, holder, term, owner, at, reason)
    SELECT %(name)s, slot, CASE WHEN was IS NULL THEN 'acquired' ELSE 'taken over' END, holder, term, owner, clock_timestamp(),
        CASE WHEN was IS NOT NULL THEN
            'from ' || coalesce(was_owner, '?') || ', whose term ' || was_term || ' expired at ' || was_until END
    FROM l
)
SELECT slot, term FROM l;

-- renew
WITH k AS MATERIALIZED (
    SELECT name, slot, expires_at FROM "app".leasequeue_lease WHERE name = %(name)s AND slot = %(slot)s AND term = %(term)s AND holder = %(holder)s FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE "app".leasequeue_lease AS lease SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + %(ttl)s * interval '1 second'
FROM k WHERE lease.name = k.name AND lease.slot = k.slot AND k.expires_at > clock_timestamp()
RETURNING extract(epoch FROM lease.expires_at - clock_timestamp())::float8;

-- release
WITH k AS MATERIALIZED (
    SELECT name, slot, holder, owner FROM "app".leasequeue_lease WHERE name = %(name)s AND slot = %(slot)s AND term = %(term)s AND holder = %(holder)s FOR NO KEY UPDATE SKIP LOCKED
), l AS (
    UPDATE "app".leasequeue_lease AS lease
    SET holder = NULL, owner = NULL, renewed_at = clock_timestamp(), expires_at = NULL
    FROM k WHERE lease.name = k.name AND lease.slot = k.slot
    RETURNING lease.slot, lease.term, k.holder, k.owner
), e AS (
    INSERT INTO "app".leasequeue_lease_event (name, slot, event, holder, term, owner, at, reason)
    SELECT %(name)s, slot, 'released', holder, term, owner, clock_timestamp(), %(reason)s FROM l
)
SELECT pg_notify(%(channel)s, %(name)s) FROM l;

-- force
WITH k AS MATERIALIZED (
    SELECT name, slot, holder, owner FROM "app".leasequeue_lease
    WHERE name = %(name)s AND (%(slot)s::int IS NULL OR slot = %(slot)s::int) AND holder IS NOT NULL
    ORDER BY slot FOR NO KEY UPDATE SKIP LOCKED
), l AS (
    UPDATE "app".leasequeue_lease AS lease SET holder = NULL, owner = NULL
    FROM k WHERE lease.name = k.name AND lease.slot = k.slot
    RETURNING lease.slot, lease.term, k.holder, k.owner, lease.expires_at
), e AS (
    INSERT INTO "app".leasequeue_lease_event (name, slot, event, holder, term, owner, at, reason)
    SELECT %(name)s, slot, 'released', holder, term, owner, clock_timestamp(), %(reason)s FROM l
)
SELECT slot, term, owner, extract(epoch FROM expires_at)::float8, extract(epoch FROM expires_at - clock_timestamp())::float8 FROM l;

-- resize
WITH k AS MATERIALIZED (
    SELECT name, slot FROM "app".leasequeue_lease WHERE name = %(name)s ORDER BY slot FOR NO KEY UPDATE
)
UPDATE "app".leasequeue_lease AS lease SET slots = %(slots)s
FROM k WHERE lease.name = k.name AND lease.slot = k.slot RETURNING lease.slot;

-- read
SELECT slot, slots, holder, term, owner, extract(epoch FROM acquired_at)::float8,
    extract(epoch FROM expires_at)::float8, ((holder IS NULL AND expires_at IS NULL) OR expires_at <= clock_timestamp()), extract(epoch FROM clock_timestamp())::float8
FROM "app".leasequeue_lease WHERE name = %(name)s ORDER BY slot;

-- note_lost
INSERT INTO "app".leasequeue_lease_event (name, slot, event, holder, term, owner, at, reason)
VALUES (%(name)s, %(slot)s, 'lost', %(holder)s, %(term)s, %(owner)s, clock_timestamp(), %(reason)s) RETURNING id;

-- note_refused
INSERT INTO "app".leasequeue_lease_event AS event
    (name, slot, event, holder, term, owner, at, count, reason)
VALUES (%(name)s, 0, 'refused', %(holder)s, %(term)s, %(owner)s, clock_timestamp(), %(count)s, %(reason)s)
ON CONFLICT (name, owner, reason, date_trunc('minute', at AT TIME ZONE 'UTC')) WHERE event = 'refused'
DO UPDATE SET count = event.count + excluded.count, at = excluded.at, holder = excluded.holder, term = excluded.term
RETURNING id;
