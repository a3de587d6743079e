"""${message}."""

from alembic import context, op

from leasequeue import schema

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    schema.upgrade(op, since=, to=, schema=context.config.attributes["schema"])


def downgrade() -> None:
    schema.downgrade(op, since=, to=, schema=context.config.attributes["schema"])
