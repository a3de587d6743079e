"""What the server's catalog says about a schema, with the schema's own name taken out, so that two can be compared."""

from __future__ import annotations

from typing import Any, TypeAlias

import psycopg

from leasequeue.db.names import qualify

Catalog: TypeAlias = "set[tuple[str, ...]]"

WEIRD = 'we "ird Schema.x%:y'
"""A schema name that must be quoted, and whose characters mean something to drivers, to URLs and to SQLAlchemy."""

_QUERIES = {
    "relation": """
        SELECT c.relname, c.relkind, c.relpersistence, c.relowner::regrole, array(SELECT unnest(c.reloptions) ORDER BY 1),
               c.relreplident, obj_description(c.oid, 'pg_class'), c.relacl
        FROM pg_class c WHERE c.relnamespace = %(oid)s""",
    "column": """
        SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
               a.attgenerated, a.attstorage, a.attcompression, a.attstattarget, a.attcollation::regcollation,
               pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum)
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
             LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relnamespace = %(oid)s AND c.relkind IN ('r', 'v', 'p') AND a.attnum > 0 AND NOT a.attisdropped""",
    "constraint": """
        SELECT conrelid::regclass, conname, contype, condeferrable, convalidated, pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = %(oid)s""",
    "index": """
        SELECT c.relname, i.indisunique, i.indisprimary, i.indisvalid, pg_get_indexdef(c.oid)
        FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid WHERE c.relnamespace = %(oid)s""",
    "sequence": """
        SELECT c.relname, format_type(s.seqtypid, NULL), s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache, s.seqcycle,
               (SELECT d.refobjid::regclass::text || '.' || d.refobjsubid || d.deptype::text FROM pg_depend d
                WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.refobjsubid > 0)
        FROM pg_class c JOIN pg_sequence s ON s.seqrelid = c.oid WHERE c.relnamespace = %(oid)s""",
    "type": "SELECT typname, typtype FROM pg_type WHERE typnamespace = %(oid)s",
    "function": "SELECT proname, oidvectortypes(proargtypes) FROM pg_proc WHERE pronamespace = %(oid)s",
    "trigger": """
        SELECT c.relname, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE c.relnamespace = %(oid)s AND NOT t.tgisinternal""",
}


def catalog(url: str, schema: str) -> Catalog:
    """Everything in the schema as rows of text."""
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as conn:
        oid = conn.execute("SELECT oid FROM pg_namespace WHERE nspname = %s", [schema]).fetchall()[0][0]
        found: Catalog = set()
        for kind, query in _QUERIES.items():
            rows: list[tuple[Any, ...]] = conn.execute(query.encode(), {"oid": oid}).fetchall()
            # regclass and pg_get_* write the schema only where it must be written, hence both forms.
            written = (qualify(schema) + ".", schema + ".")
            found |= {(kind, *(_without(str(value), written) for value in row)) for row in rows}
        return found


def _without(value: str, written: tuple[str, ...]) -> str:
    for each in written:
        value = value.replace(each, "")
    return value


def create_schema(url: str, schema: str) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(f"CREATE SCHEMA {qualify(schema)}".encode())
