"""The tables of leasequeue, version 1."""

import os

from alembic import op

import leasequeue.schema

revision = "0002"
down_revision = "0001"

SCHEMA = os.environ.get("LEASEQUEUE_SCHEMA", "public")


def upgrade() -> None:
    leasequeue.schema.upgrade(op, since=0, to=1, schema=SCHEMA)


def downgrade() -> None:
    leasequeue.schema.downgrade(op, since=1, to=0, schema=SCHEMA)
