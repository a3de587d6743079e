"""Alembic's environment for the project's own history; `leasequeue migrate` runs it, and hands it what it needs.

It says nothing that a host's own environment would not: the revisions call leasequeue.schema.
"""

from alembic import context

from leasequeue.errors import ConfigurationError

given = context.config.attributes
if "schema" not in given:
    raise ConfigurationError("this Alembic environment is run by `leasequeue migrate`, not by alembic itself")
options = {"version_table": given["version_table"], "version_table_schema": given["schema"]}
if context.is_offline_mode():
    context.configure(dialect_name="postgresql", dialect_opts={"paramstyle": "named"}, literal_binds=True, **options)
else:
    context.configure(connection=given["connection"], **options)
with context.begin_transaction():
    context.run_migrations()
