"""``examples/host_app``: our tables inside an application's own Alembic history, run as its developers run it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from leasequeue.db.names import qualify

from .catalog import WEIRD, Catalog, catalog, create_schema

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "host_app"
SCHEMAS = ["public", WEIRD]
ALEMBIC = """
import shlex, sys
from alembic.config import main
for command in sys.argv[1:]:
    main(shlex.split(command), prog="alembic")
    print("\\0", end="")
"""


class HostApp:
    """A copy of the example on a database of its own."""

    def __init__(self, folder: Path, url: str, schema: str) -> None:
        self.folder, self.url, self.schema = folder, url, schema
        shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
        if schema != "public":
            create_schema(url, schema)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"DATABASE_URL": self.url, "LEASEQUEUE_SCHEMA": self.schema}
        # Warnings are errors here as everywhere, but for those of the import machinery of other packages.
        command = [sys.executable, "-W", "error", *words]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60)

    def alembic(self, *commands: str) -> list[str]:
        """What each command prints. One process for all: to import alembic takes longer than what it does."""
        done = self.run("-c", ALEMBIC, *commands)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.split("\0")[:-1]

    def catalog(self) -> Catalog:
        return catalog(self.url, self.schema)


@pytest.fixture(params=SCHEMAS)
def host(request: pytest.FixtureRequest, direct_url: str, tmp_path: Path) -> HostApp:
    return HostApp(tmp_path / "host_app", direct_url, request.param)


def test_upgrade_check_autogenerate_downgrade(host: HostApp) -> None:
    host.alembic("upgrade 0001")
    before = host.catalog()

    _, checked, _ = host.alembic("upgrade head", "check", "revision --autogenerate -m probe --rev-id probe")
    assert "No new upgrade operations detected" in checked
    (written,) = (host.folder / "history" / "versions").glob("probe_*.py")
    assert "leasequeue" not in written.read_text()
    assert written.read_text().count("    pass\n") == 2
    written.unlink()

    host.alembic("downgrade 0001")
    assert host.catalog() == before


@pytest.mark.parametrize("host", ["public", "jobs"], indirect=True)
def test_without_include_name_alembic_would_drop_our_tables(host: HostApp) -> None:
    """The broken variant, to show that the test above can fail."""
    host.alembic("upgrade head")
    env = host.folder / "history" / "env.py"
    ours = "return leasequeue.schema.include_name(name, type_, parent_names)"
    assert ours in env.read_text()
    env.write_text(env.read_text().replace(ours, "return True"))

    done = host.run("-m", "alembic", "check")

    assert done.returncode != 0
    assert "leasequeue_job" in done.stdout + done.stderr


def test_the_offline_script_makes_the_same(host: HostApp, direct_url: str) -> None:
    psql = shutil.which("psql")
    if psql is None:
        pytest.skip("needs psql")
    before = host.catalog()
    host.alembic("upgrade head")
    online = host.catalog()
    to_head, to_base = host.alembic("downgrade base", "upgrade head --sql", "downgrade head:base --sql")[1:]
    with psycopg.connect(direct_url, autocommit=True) as conn:
        conn.execute("DROP TABLE alembic_version")  # Alembic never drops it
    assert host.catalog() == before

    def apply(script: str) -> None:
        done = subprocess.run(
            [psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", direct_url], input=script, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    apply(to_head)
    assert host.catalog() == online
    apply(to_base)
    with psycopg.connect(direct_url, autocommit=True) as conn:
        conn.execute("DROP TABLE alembic_version")
    assert host.catalog() == before


def test_the_application_enqueues_beside_its_own_rows(host: HostApp) -> None:
    host.alembic("upgrade head")

    done = host.run("-c", "import shop; print(shop.sign_up('Ada', 'ada@example.org'))")

    assert done.returncode == 0, done.stderr
    with psycopg.connect(host.url) as conn:
        query = f"SELECT task, args, state FROM {qualify(host.schema)}.leasequeue_job"
        assert conn.execute(query.encode()).fetchall() == [("shop.greet", {"customer_id": int(done.stdout)}, "r")]


def test_an_application_without_the_tables_is_told_what_to_run(host: HostApp) -> None:
    host.alembic("upgrade 0001")

    done = host.run("-c", "import shop; shop.sign_up('Ada', 'ada@example.org')")

    assert done.returncode != 0
    assert "SchemaMismatch" in done.stderr
    assert "leasequeue migrate --schema" in done.stderr
    assert "leasequeue.schema.upgrade(op, since=0, to=1" in done.stderr
