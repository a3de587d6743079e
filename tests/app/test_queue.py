"""LeaseQueue: settings, imports, lifespan, middleware."""

from __future__ import annotations

import asyncio
import datetime as dt
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import create_engine

from leasequeue import ConfigurationError, JobContext, LeaseQueue
from leasequeue.context import _current, current_job
from leasequeue.job import Held, Job
from leasequeue.limit import Limit

A = "postgresql://u:p@one/a"
B = "postgresql://u:p@two/b"


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEASEQUEUE_URL", "LEASEQUEUE_URL_FILE", "DATABASE_URL", "LEASEQUEUE_SCHEMA"):
        monkeypatch.delenv(name, raising=False)


# Settings


def test_nothing_is_read_before_it_is_needed() -> None:
    lq = LeaseQueue()
    lq.configure(url=lambda: pytest.fail("asked for the URL"), schema=lambda: pytest.fail("asked for the schema"))

    @lq.task()
    def send() -> None: ...

    assert send.name == f"{__name__}.test_nothing_is_read_before_it_is_needed.<locals>.send"


def test_where_nothing_is_set_the_three_ways_are_said() -> None:
    with pytest.raises(ConfigurationError, match=r"configure\(url=.*LEASEQUEUE_URL.*DATABASE_URL"):
        LeaseQueue().settings()


def test_the_order_of_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u@h/third")
    assert LeaseQueue().settings().dbname == "third"
    (tmp_path / "url").write_text("postgresql://u@h/second\n")
    monkeypatch.setenv("LEASEQUEUE_URL_FILE", str(tmp_path / "url"))
    assert LeaseQueue().settings().dbname == "second"
    monkeypatch.setenv("LEASEQUEUE_URL", "postgres://u@h/first")
    assert LeaseQueue().settings().dbname == "first"
    lq = LeaseQueue()
    lq.configure(url=A)
    assert lq.settings().dbname == "a"


def test_a_file_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEASEQUEUE_URL_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match="nowhere"):
        LeaseQueue().settings()


def test_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LeaseQueue().schema == "public"
    monkeypatch.setenv("LEASEQUEUE_SCHEMA", "from env")
    assert LeaseQueue().schema == "from env"
    assert LeaseQueue(schema="app").schema == "app"
    lq = LeaseQueue()
    lq.configure(schema=lambda: "called")
    assert lq.schema == "called"
    with pytest.raises(ConfigurationError, match="63"):
        LeaseQueue(schema="x" * 64)
    with pytest.raises(ConfigurationError, match="differ"):
        LeaseQueue(schema="app").configure(schema="other")


def test_configure_twice() -> None:
    lq = LeaseQueue()
    lq.configure(url=A, schema="app")
    lq.configure(url=A, schema="app")
    with pytest.raises(ConfigurationError, match="configured already"):
        lq.configure(url=B, schema="app")
    assert lq.settings().dbname == "a"
    lq.configure(url=A, schema="app")


def test_configure_after_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", A)
    lq = LeaseQueue()
    lq.settings()
    with pytest.raises(ConfigurationError, match="after the first use"):
        lq.configure(url=B)


def test_a_given_engine_is_used_as_it_is() -> None:
    engine = create_engine("postgresql+psycopg://u:p@one/a")
    lq = LeaseQueue()
    lq.configure(engine=lambda: engine)
    assert lq.engine is engine
    assert lq.settings().dbname == "a"


def test_an_engine_of_our_own_is_made_once() -> None:
    lq = LeaseQueue()
    lq.configure(url=A)
    assert lq.engine is lq.engine
    assert lq.engine.url.drivername == "postgresql+psycopg"


@pytest.mark.parametrize("default", ["repeatable read", "serializable"])
def test_begin(database: Any, default: str) -> None:
    database.execute(
        f"ALTER DATABASE {database.execute('SELECT quote_ident(current_database())')[0][0]} "
        f"SET default_transaction_isolation = '{default}'"
    )
    lq = LeaseQueue(schema=database.schema)
    lq.configure(url=database.url)
    with lq.begin() as conn:
        raw = conn.connection.driver_connection
        assert raw is not None
        assert raw.prepare_threshold is None
        assert conn.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"
        conn.exec_driver_sql("CREATE TABLE effect (n integer)")

    def fail() -> None:
        with lq.begin() as conn:
            conn.exec_driver_sql("INSERT INTO effect VALUES (1)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    async def twin() -> object:
        try:
            async with lq.abegin() as conn:
                return (await conn.exec_driver_sql("SHOW transaction_isolation")).scalar()
        finally:
            await lq.adispose()

    assert [asyncio.run(twin()), asyncio.run(twin())] == ["read committed"] * 2, "in one loop, then in another"
    lq.dispose()
    assert database.execute("SELECT count(*) FROM effect") == [(0,)]


# Imports


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    root = tmp_path / "shop"
    (root / "tasks" / "deep").mkdir(parents=True)
    for folder in (root, root / "tasks", root / "tasks" / "deep"):
        (folder / "__init__.py").touch()
    for name in ("mail", "stock", "__main__"):
        (root / "tasks" / f"{name}.py").write_text("raise SystemExit" if name == "__main__" else "")
    (root / "tasks" / "deep" / "far.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield root
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("pattern", "modules"),
    [
        ("shop.tasks", ["shop.tasks"]),
        ("shop.tasks.*", ["shop.tasks.deep", "shop.tasks.mail", "shop.tasks.stock"]),
        ("shop.tasks.m*", ["shop.tasks.mail"]),
        ("shop.*.deep.far", ["shop.tasks.deep.far"]),
    ],
)
def test_imports(package: Path, pattern: str, modules: list[str]) -> None:
    assert LeaseQueue(imports=[pattern]).load_imports() == modules
    assert set(modules) <= set(sys.modules)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("shop.nothing", "cannot import shop.nothing"),
        ("shop.tasks.x*", "matches no module"),
        ("shop.tasks.mail.*", "shop.tasks.mail is a module"),
        ("*.tasks", "first part"),
        ("shop..tasks", "dotted"),
    ],
)
def test_imports_that_fail(package: Path, pattern: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        LeaseQueue(imports=[pattern]).load_imports()


def test_a_module_that_does_not_import_is_named_with_its_reason(package: Path) -> None:
    (package / "tasks" / "stock.py").write_text("import no_such_thing")
    with pytest.raises(ConfigurationError, match=r"shop\.tasks\.stock .*no_such_thing"):
        LeaseQueue(imports=["shop.tasks.*"]).load_imports()


# Lifespan


def test_a_sync_lifespan() -> None:
    seen: list[object] = []

    @contextmanager
    def resources(lq: LeaseQueue) -> Iterator[str]:
        seen.append(lq)
        yield "pool"
        seen.append("closed")

    lq = LeaseQueue(lifespan=resources)
    assert lq.enter_lifespan() == "pool"
    assert lq.lifespan_is_async is False
    assert lq.exit_lifespan() is None
    assert lq.exit_lifespan() is None
    assert seen == [lq, "closed"]


@pytest.mark.parametrize("bare", [False, True])
def test_an_async_lifespan(bare: bool) -> None:
    seen: list[object] = []

    async def resources(lq: LeaseQueue) -> AsyncIterator[str]:
        yield "pool"
        seen.append("closed")

    factory: Callable[..., Any] = resources if bare else asynccontextmanager(resources)
    lq = LeaseQueue(lifespan=factory)

    async def life() -> object:
        value = await lq.enter_lifespan()
        assert lq.lifespan_is_async is True
        await lq.exit_lifespan()
        return value

    assert asyncio.run(life()) == "pool"
    assert seen == ["closed"]


def test_without_a_lifespan() -> None:
    lq = LeaseQueue()
    assert lq.enter_lifespan() is None
    assert lq.exit_lifespan() is None


def test_a_lifespan_that_is_no_context_manager() -> None:
    with pytest.raises(ConfigurationError, match="contextmanager"):
        LeaseQueue(lifespan=lambda lq: 5).enter_lifespan()


# Middleware


def context() -> JobContext:
    import uuid

    return JobContext(Held(1, 1, uuid.uuid4()), "send", "default", 1, 8)


def test_middleware_wraps_its_own_sort_from_the_outside_in() -> None:
    lq, seen = LeaseQueue(), list[str]()

    @lq.middleware
    def outer(ctx: JobContext, call_next: Callable[[], Any]) -> Any:
        seen.append("outer")
        return call_next() + 1

    @lq.middleware
    def inner(ctx: JobContext, call_next: Callable[..., Any]) -> Any:
        seen.append("inner")
        return call_next(ctx) * 10

    @lq.middleware
    async def around(ctx: JobContext, call_next: Callable[[], Any]) -> Any:
        seen.append("around")
        return await call_next() + 100

    @lq.task(name="plain")
    def plain(n: int) -> int:
        seen.append("plain")
        return n

    @lq.task(name="coroutine")
    async def coroutine(n: int) -> int:
        seen.append("coroutine")
        return n

    assert lq.handler(plain)(context(), {"n": 4}) == 41
    assert lq.handler(plain) is lq.handler(plain)
    assert asyncio.run(lq.handler(coroutine)(context(), {"n": 4})) == 104
    assert seen == ["outer", "inner", "plain", "around", "coroutine"]
    problems = lq.check()
    assert len(problems) == 3
    assert "outer" in problems[0]
    assert "coroutine" in problems[0]
    assert "around" in problems[2]
    assert "plain" in problems[2]


def test_a_twin_of_the_other_sort_satisfies_the_check() -> None:
    lq = LeaseQueue()

    @lq.middleware
    def with_app(ctx: JobContext, call_next: Callable[[], Any]) -> Any: ...

    @lq.task(name="coroutine")
    async def coroutine() -> None: ...

    assert len(lq.check()) == 1

    @lq.middleware
    async def awith_app(ctx: JobContext, call_next: Callable[[], Any]) -> Any: ...

    assert lq.check() == []


def test_what_is_no_middleware() -> None:
    lq = LeaseQueue()
    with pytest.raises(ConfigurationError, match="two arguments"):
        lq.middleware(lambda ctx: None)

    def generator(ctx: JobContext, call_next: Callable[[], Any]) -> Iterator[None]:
        yield

    with pytest.raises(ConfigurationError, match="generator"):
        lq.middleware(generator)


# The context, the history, the package


def test_current_job() -> None:
    with pytest.raises(ConfigurationError, match="no job runs"):
        current_job()
    ctx = context()
    token = _current.set(ctx)
    try:
        assert current_job() is ctx
        assert not ctx.cancelled.is_set()
        ctx.cancelled.set()
        assert ctx.cancelled.is_set()
    finally:
        _current.reset(token)


def test_keeps() -> None:

    lq = LeaseQueue()
    lq.queue("mail", keep=0)
    lq.queue("slow", keep=dt.timedelta(days=1))
    assert [lq.keeps(name) for name in ("mail", "slow", "default")] == [False, True, True]
    with pytest.raises(ConfigurationError, match="keep"):
        lq.queue("mail", keep=7)


def test_the_import_brings_in_neither_alembic_nor_rich_nor_click() -> None:
    code = (
        "import leasequeue, sys; from leasequeue import LeaseQueue, current_job; "
        "print(*sorted({'alembic', 'rich', 'click', 'django', 'psycopg2', 'asyncpg'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_public_name_is_there() -> None:
    import leasequeue

    assert all(hasattr(leasequeue, name) for name in leasequeue.__all__)
    assert set(leasequeue.__all__) <= set(dir(leasequeue))
    with pytest.raises(AttributeError):
        _ = leasequeue.nothing


def test_what_public_names_return_is_public() -> None:
    """A caller can annotate what he is given without reaching into rooms that may change."""
    import leasequeue
    from leasequeue import cancel, steps, workflow

    missing = {*workflow.__all__, "Cancellation"} - set(leasequeue.__all__)
    assert not missing
    assert leasequeue.Cancellation is cancel.Cancellation
    assert leasequeue.StepRow is steps.StepRow
    assert leasequeue.Node is workflow.Node


def test_queues_and_limits_of_the_code() -> None:
    lq = LeaseQueue()
    assert (lq.declared_limits(), lq.ageing_seconds("mail")) == ([], None)
    lq.queue("mail", keep=0, limit=4, rate="100/10s", ageing=dt.timedelta(minutes=5))
    lq.limit("user", 2)
    lq.limit("user:7", rate=(5, dt.timedelta(minutes=1)))
    assert lq.declared_limits() == [
        ("queue:mail", Limit(4, 100, 10.0)), ("user", Limit(2)), ("user:7", Limit(None, 5, 60.0)),
    ]  # fmt: skip
    assert (lq.keeps("mail"), lq.ageing_seconds("mail")) == (False, 300.0)
    lq.queue("mail")
    lq.limit("user", 3)
    assert lq.declared_limits() == [("user", Limit(3)), ("user:7", Limit(None, 5, 60.0))]
    assert (lq.keeps("mail"), lq.ageing_seconds("mail")) == (True, None)
    wrong: Any = [
        lambda: lq.queue("mail", ageing=dt.timedelta(0)), lambda: lq.queue("mail", ageing=cast(Any, 5)),
        lambda: lq.queue("mail", limit=0), lambda: lq.queue("x" * 510, limit=1), lambda: lq.limit("user"),
        lambda: lq.limit("user", 0), lambda: lq.limit("", 1), lambda: lq.limit("user:", 1),
    ]  # fmt: skip
    for each in wrong:
        with pytest.raises(ConfigurationError):
            each()


@pytest.mark.parametrize("id", [None, "7", True, 2**63, Job(7, True, "t", "default")])
def test_what_is_no_id_is_refused_in_words(id: Any) -> None:
    lq = LeaseQueue()
    for ask in (lq.job, lq.workflow_of, lambda id: lq.cancel(lq, id)):
        with pytest.raises(ConfigurationError, match="id is a whole number") as caught:
            ask(id)
        assert str(caught.value).endswith("give its .id") is isinstance(id, Job)
