"""``leasequeue migrate``."""

from __future__ import annotations

import click

from leasequeue.cli.database import database_options, where


@click.command()
@database_options
@click.option("--sql", is_flag=True, help="Print the script of a whole migration instead; needs no database.")
def migrate(url: str | None, schema: str | None, sql: bool) -> None:
    """Create or upgrade the tables in an existing schema.

    Safe to repeat and to run from several places at once. An application with an Alembic history of its own calls
    leasequeue.schema.upgrade in a revision instead.
    """
    if sql:
        from leasequeue.config import Config
        from leasequeue.ops.migrate import offline_sql

        click.echo(offline_sql(Config(schema).schema), nl=False)
        return
    from leasequeue.ops import migrate as migration

    settings, name = where(url, schema)
    migration.migrate(settings, name, click.echo)
