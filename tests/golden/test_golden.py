"""The statements as the server gets them, kept in files, so that a reviewer sees real SQL and can EXPLAIN it.

``LEASEQUEUE_UPDATE_GOLDEN=1`` writes the files anew; the difference is then part of the change under review.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

import leasequeue.db
import leasequeue.schema
from tests.rules.test_sql_rules import STATEMENT as SQL
from tests.rules.test_sql_rules import STRINGS

HERE = Path(__file__).parent
SCHEMA = "app"


def _rendered() -> dict[str, Callable[[str], dict[str, str]]]:
    names = [found.name for found in pkgutil.iter_modules(leasequeue.db.__path__) if not found.ispkg]
    modules = {name: import_module(f"leasequeue.db.{name}") for name in names}
    return {name: module.statements for name, module in modules.items() if hasattr(module, "statements")} | {
        "schema": lambda schema: {
            f"{kind}_{place:02}": each
            for kind, since, to in (
                ("upgrade", 0, leasequeue.schema.VERSION),
                ("downgrade", leasequeue.schema.VERSION, 0),
            )
            for place, each in enumerate(leasequeue.schema.statements(since, to, schema))
        }
    }


MODULES = _rendered()
_OF_DB = "leasequeue/db/"
HOLDERS = sorted(
    {found.place.removeprefix(_OF_DB) for found in STRINGS if found.place.startswith(_OF_DB) and SQL.search(found.text)}
    - {"tables.py", "columns.py"}  # what they make is compared with the migrations, in tests/schema
)


@pytest.mark.parametrize("name", MODULES)
def test_the_statements_are_those_in_the_file(name: str) -> None:
    path = HERE / f"{name}.sql"
    text = "\n".join(f"-- {title}\n{statement.strip()};\n" for title, statement in MODULES[name](SCHEMA).items())
    if os.environ.get("LEASEQUEUE_UPDATE_GOLDEN") == "1":
        path.write_text(text)
    assert path.exists(), f"{path.name} is missing: run with LEASEQUEUE_UPDATE_GOLDEN=1 and read what it wrote"
    assert text == path.read_text(), "run with LEASEQUEUE_UPDATE_GOLDEN=1 and read the difference"


def test_no_file_is_left_over() -> None:
    assert {path.stem for path in HERE.glob("*.sql")} == set(MODULES)


@pytest.mark.parametrize("name", [name for name in HOLDERS if "/" not in name])
def test_who_holds_sql_offers_it(name: str) -> None:
    if Path(name).stem not in MODULES:
        pytest.skip(f"{_OF_DB}{name} holds SQL and has no statements(schema): its text is not under review here")


@pytest.mark.parametrize("name", MODULES)
def test_every_statement_names_its_schema(name: str) -> None:
    for title, statement in MODULES[name]('x"y').items():
        if "leasequeue_" in statement and "%(schema)s" not in statement:
            assert '"x""y".' in statement, title
