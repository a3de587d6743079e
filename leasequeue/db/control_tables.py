"""The tables of limits, uniqueness and workflows, as ``db/tables.py`` has the others."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    text,
)

from leasequeue.db.columns import (
    EMPTY,
    LOCKED,
    RATE,
    SMALL,
    WAKES,
    Char,
    identity,
    json_,
    key_length,
    number,
    stored,
    text_,
    time_,
)


def app(metadata: MetaData) -> Table:
    name = "leasequeue_app"
    app = Table(
        name,
        metadata,
        text_("name"),
        number("version", BigInteger, default="1"),
        text_("release", null=True),
        time_("deployed_at"),
        json_("releases", default=EMPTY),
        PrimaryKeyConstraint("name", name=f"{name}_pkey"),
        key_length(name, "name"),
    )
    return stored(app, SMALL)


def limit(metadata: MetaData) -> Table:
    name = "leasequeue_limit"
    limit = Table(
        name,
        metadata,
        text_("name"),
        Column("declared", Boolean, nullable=False),
        number("max_running", null=True),
        number("rate_max", null=True),
        number("rate_seconds", Double, null=True),
        text_("app", null=True),
        time_("deployed_at"),
        time_("updated_at", null=False, now=True),
        text_("updated_by", null=True),
        PrimaryKeyConstraint("name", "declared", name=f"{name}_pkey"),
        key_length(name, "name"),
        CheckConstraint(f"max_running >= 0 AND {RATE}", name=f"{name}_values_check"),
    )
    return stored(limit, SMALL)


def wake(metadata: MetaData) -> Table:
    name = "leasequeue_wake"
    wake = Table(
        name,
        metadata,
        identity(),
        text_("queue"),
        time_("due_at", null=False, now=True),
        text_("key"),
        text_("parked", null=True),
        Column("whole", Boolean, nullable=False, server_default=text("false")),
        Column("given", Boolean, nullable=False, server_default=text("false")),
        PrimaryKeyConstraint("id", name=f"{name}_pkey"),
    )
    c = wake.c
    Index(f"{name}_due", c.queue, c.due_at, c.id)
    Index(f"{name}_parked", c.parked, c.id, postgresql_where=text("parked IS NOT NULL"))
    return stored(wake, WAKES)


def bucket(metadata: MetaData) -> Table:
    name = "leasequeue_bucket"
    bucket = Table(name, metadata, number("id"), PrimaryKeyConstraint("id", name=f"{name}_pkey"))
    return stored(bucket, LOCKED)


def admission(metadata: MetaData) -> Table:
    name = "leasequeue_admission"
    admission = Table(
        name,
        metadata,
        identity(),
        text_("name"),
        time_("at", null=False),
        number("count"),
        time_("until", null=False),
        PrimaryKeyConstraint("id", name=f"{name}_pkey"),
    )
    Index(f"{name}_name", admission.c.name, admission.c.at)
    Index(f"{name}_age", admission.c.until)
    return stored(admission, WAKES)


def hold(metadata: MetaData) -> Table:
    name = "leasequeue_hold"
    hold = Table(
        name,
        metadata,
        text_("unique_key"),
        number("job_id", BigInteger),
        time_("expires_at", null=False),
        PrimaryKeyConstraint("unique_key", name=f"{name}_pkey"),
        key_length(name, "unique_key"),
    )
    Index(f"{name}_age", hold.c.expires_at)
    return hold


def workflow(metadata: MetaData) -> Table:
    name = "leasequeue_workflow"
    workflow = Table(
        name,
        metadata,
        identity(),
        text_("name", null=True),
        time_("created_at", null=False, now=True),
        json_("meta", null=True),
        PrimaryKeyConstraint("id", name=f"{name}_pkey"),
    )
    Index(f"{name}_age", workflow.c.created_at)
    return workflow


def step(metadata: MetaData) -> Table:
    name = "leasequeue_step"
    step = Table(
        name,
        metadata,
        number("workflow", BigInteger),
        text_("name"),
        number("job_id", BigInteger),
        PrimaryKeyConstraint("workflow", "name", name=f"{name}_pkey"),
        key_length(name, "name"),
    )
    Index(f"{name}_job", step.c.job_id)
    return step


def edge(metadata: MetaData) -> Table:
    name = "leasequeue_edge"
    edge = Table(
        name,
        metadata,
        number("parent_id", BigInteger),
        number("child_id", BigInteger),
        Column("on_failure", Char(), nullable=False, server_default=text("'x'")),
        PrimaryKeyConstraint("parent_id", "child_id", name=f"{name}_pkey"),
        CheckConstraint("on_failure IN ('x', 'c', 'f')", name=f"{name}_on_failure_check"),
    )
    Index(f"{name}_child", edge.c.child_id)
    return stored(edge, WAKES)
