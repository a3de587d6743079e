"""Version 1 of the tables."""

from alembic import context, op

from leasequeue import schema

revision = "0001"
down_revision = None


def upgrade() -> None:
    schema.upgrade(op, since=0, to=1, schema=context.config.attributes["schema"])


def downgrade() -> None:
    schema.downgrade(op, since=1, to=0, schema=context.config.attributes["schema"])
