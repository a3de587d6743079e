"""Database URLs: every usual form means the same, a password is shown nowhere, a slip is named."""

from __future__ import annotations

import string
from urllib.parse import quote

import pytest
import sqlalchemy
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import create_async_engine

from leasequeue.db.urls import Host, Settings, default_hosts
from leasequeue.errors import ConfigurationError

PLAIN = Settings((Host("h", 6543),), "db", "u", "p")


@pytest.mark.parametrize(
    "url",
    [
        "postgres://u:p@h:6543/db",
        "postgresql://u:p@h:6543/db",
        "POSTGRESQL://u:p@h:6543/db",
        "  postgresql+psycopg://u:p@h:6543/db\n",
        "postgresql+psycopg2://u:p@h:6543/db",
        "postgresql+asyncpg://u:p@h:6543/db?prepared_statement_cache_size=0&statement_cache_size=0",
        "postgresql://u:p@h:6543/db?pgbouncer=true&connection_limit=1&schema=public",
        "postgresql://u:p@/db?host=h&port=6543",
        "postgresql+psycopg://u:p@/db?host=h:6543",
        "postgresql://?host=h&port=6543&user=u&password=p&dbname=db",
        "host=h port=6543 dbname=db user=u password=p",
        "dbname='db' user = u password=p host=h port=6543",
    ],
)
def test_one_form(url: str) -> None:
    assert Settings.parse(url) == PLAIN


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ("postgresql+asyncpg://h/d?ssl=require", "require"),
        ("postgresql+asyncpg://h/d?ssl=verify-full", "verify-full"),
        ("postgres://h/d?ssl=true", "require"),
        ("postgres://h/d?ssl=false", "disable"),
        ("postgres://h/d?sslmode=verify-full&ssl=require", "verify-full"),
        ("postgres://h/d?sslmode=no-verify", "require"),
    ],
)
def test_ssl(given: str, mode: str) -> None:
    settings = Settings.parse(given)
    assert settings.params()["sslmode"] == mode
    assert settings.url().query["sslmode"] == mode
    assert settings.url("asyncpg").query["ssl"] == mode


HOSTS = (Host("a", 5432), Host("b", 5433))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://a:5432,b:5433/db?target_session_attrs=read-write",
        "postgresql:///db?host=a:5432&host=b:5433&target_session_attrs=read-write",
        "postgresql+psycopg:///db?host=a:5432&host=b:5433&target_session_attrs=read-write",
        "postgresql:///db?host=a,b&port=5432,5433&target_session_attrs=read-write",
        "host=a,b port=5432,5433 dbname=db target_session_attrs=read-write",
    ],
)
def test_several_hosts(url: str) -> None:
    settings = Settings.parse(url)
    assert settings.hosts == HOSTS
    assert settings.target_session_attrs == "read-write"
    assert settings.params() == {
        "host": "a,b",
        "port": "5432,5433",
        "dbname": "db",
        "target_session_attrs": "read-write",
    }
    assert settings.masked == "postgresql://a:5432,b:5433/db?target_session_attrs=read-write"
    assert Settings.parse(settings.masked) == settings


def test_one_port_for_all_hosts() -> None:
    assert Settings.parse("host=a,b port=7").hosts == (Host("a", 7), Host("b", 7))
    with pytest.raises(ConfigurationError, match="3 hosts and 2 ports"):
        Settings.parse("host=a,b,c port=7,8")


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("postgresql:///db?host=/var/run/pg", Host("/var/run/pg", None)),
        ("postgresql://%2Fvar%2Frun%2Fpg:6000/db", Host("/var/run/pg", 6000)),
        ("postgresql+psycopg:///db?host=/var/run/pg&port=6000", Host("/var/run/pg", 6000)),
        ("host=/var/run/pg dbname=db", Host("/var/run/pg", None)),
        ("postgresql://[2001:db8::1]:6000/db", Host("2001:db8::1", 6000)),
    ],
)
def test_sockets_and_v6(url: str, host: Host) -> None:
    settings = Settings.parse(url)
    assert settings.hosts == (host,)
    assert settings.dbname == "db"
    assert Settings.parse(settings.masked) == settings
    assert Settings.parse(settings.url().render_as_string(hide_password=False)) == settings


def test_what_sqlalchemy_makes_of_it() -> None:
    """SQLAlchemy's own dialects read our URLs as they were meant."""
    settings = Settings.parse("postgresql://u:p@a:1,b:2/db?target_session_attrs=read-write&sslmode=require")
    psycopg = sqlalchemy.create_engine(settings.url("psycopg"))
    _, options = psycopg.dialect.create_connect_args(psycopg.url)
    assert (options["host"], options["port"], options["dbname"]) == ("a,b", "1,2", "db")
    assert options["password"] == "p"
    asyncpg = create_async_engine(settings.url("asyncpg"))
    _, options = asyncpg.dialect.create_connect_args(asyncpg.url)
    assert (options["host"], options["port"]) == (["a", "b"], [1, 2])
    assert (options["ssl"], options["target_session_attrs"]) == ("require", "read-write")
    assert Settings.from_engine(psycopg) == settings
    assert Settings.from_engine(asyncpg) == settings


def test_asyncpg_is_told_what_cannot_be_told() -> None:
    with pytest.raises(ConfigurationError, match="sslrootcert"):
        Settings.parse("postgresql://h/d?sslmode=verify-full&sslrootcert=/ca.pem").url("asyncpg")


def test_from_an_engine_of_another_database() -> None:
    with pytest.raises(ConfigurationError, match="sqlite; leasequeue needs PostgreSQL"):
        Settings.from_engine(sqlalchemy.create_engine("sqlite://"))


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30))
def test_any_password(password: str) -> None:
    settings = Settings.parse(f"postgresql://u:{quote(password, safe='')}@h/d")
    assert settings.password == password
    assert Settings.from_json(settings.to_json()) == settings
    assert Settings.parse(settings.url().render_as_string(hide_password=False)).password == password
    assert settings.masked == "postgresql://u:***@h/d"
    assert settings.hide(f"<<{password}>>{quote(password, safe='')}") == "<<***>>***" or password in "<>*%"
    assert conninfo_to_dict("", **settings.params())["password"] == password


SECRET = "Zq9-secret"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "is empty"),
        (SECRET, "no scheme"),
        (f"//u:{SECRET}@h/d", "no scheme"),
        (f"u {SECRET}=", "cannot read the connection string"),
        (f"host=h password={SECRET} nonsense=1", "cannot read the connection string"),
        (f"postgresql://u:a/{SECRET}@h/d", "percent-encoded"),
        (f"postgresql://u:12?{SECRET}@h/d", "percent-encoded"),
        (f"postgresql://u:{SECRET}/d", "percent-encoded"),
        (f"postgresql://u:{SECRET}@h:99999/d", "no number from 1 to 65535"),
        (f"postgresql://u:{SECRET}@h/d?sslmod=require", "'sslmod'; is 'sslmode' meant"),
        (f"postgresql://u:{SECRET}@h/d?target_session_attrs=master", "read-write"),
        ("sqlite:///app.db", "sqlite:// is not a PostgreSQL URL"),
        ("sqlite+aiosqlite:///app.db", "sqlite.aiosqlite:// is not a PostgreSQL URL"),
        (f"mysql+asyncmy://u:{SECRET}@h/d", "not a PostgreSQL URL"),
        (f"jdbc:postgresql://h/d?password={SECRET}", "for Java"),
        (f"postgresql+oracledb://u:{SECRET}@h/d", "driver 'oracledb'"),
        (f"postgresql://u:{SECRET}\0@h/d", "NUL"),
    ],
)
def test_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as raised:
        Settings.parse(url)
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None
    if says not in ("percent-encoded", "NUL", "read-write") and "meant" not in says and "number" not in says:
        assert "postgresql" in str(raised.value), "an example of what is accepted"


def test_not_a_string() -> None:
    with pytest.raises(ConfigurationError, match="not int"):
        Settings.parse(5)  # type: ignore[arg-type]


def test_nothing_printed_shows_the_password() -> None:
    settings = Settings.parse(f"postgresql://u:{SECRET}@h/d?sslpassword={SECRET}2&sslkey=/k")
    for shown in (repr(settings), str(settings), f"{settings}", settings.masked):
        assert SECRET not in shown
    assert settings.hide(f"password={SECRET} sslpassword={SECRET}2") == "password=*** sslpassword=***"


@given(st.text(string.printable, max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for url in (text, "postgresql://" + text):
        try:
            settings = Settings.parse(url)
        except ConfigurationError:
            continue
        assert Settings.from_json(settings.to_json()) == settings


def test_a_password_without_a_user_survives_sqlalchemy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGUSER", "me")
    url = Settings.parse("host=h password=p").url()
    assert (url.username, url.password) == ("me", "p")


def test_hosts_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "a,b")
    monkeypatch.setenv("PGPORT", "1,2")
    settings = Settings.parse("postgresql:///d")
    assert settings.hosts == ()
    assert default_hosts(settings) == (Host("a", 1), Host("b", 2))
    monkeypatch.delenv("PGHOST")
    assert default_hosts(settings) == ()
