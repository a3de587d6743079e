"""Which Postgres the tests run on, and the databases they get.

``--backend auto|url|docker|embedded`` chooses the server (LEASEQUEUE_TEST_URL, else Docker, else the wheel),
and the header says which and why. A test that takes ``database`` runs twice: straight to the server and through
a real pgbouncer in transaction mode with two server connections (``--pooler`` narrows that down).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support import pgbouncer as pooler
from tests.support import server as servers
from tests.support.databases import Database, Templates
from tests.support.pgbouncer import PgBouncer
from tests.support.server import Server

_MARKERS = {
    "direct_only": "not run a second time through pgbouncer (say why beside it)",
    "needs_pgbouncer": "only meant for a pgbouncer; skipped aloud where there is none",
    "process": "starts, kills or stops processes; slow",
}
_state = pytest.StashKey["_State"]()


class _State:
    """What the run found and started."""

    def __init__(self, config: pytest.Config) -> None:
        self.kind, self.reason = servers.choose(str(config.getoption("--backend")))
        self.server: Server | None = None
        self.version: str | None = None
        self.no_pgbouncer: str | None = None
        self.dropped = 0
        try:
            self.pgbouncer: str | None = pooler.find()
        except pooler.Unavailable as error:
            self.pgbouncer, self.no_pgbouncer = None, str(error)

    def start(self) -> Server:
        if self.server is None:
            self.server = servers.make(self.kind, self.reason)
            self.version = self.server.version
        return self.server

    def header(self) -> str:
        if self.kind == "embedded":
            version = servers.embedded_version()
            what = f"PostgreSQL {version}, embedded"
        else:
            self.start()
            what = f"PostgreSQL {self.version}, {self.kind}"
            if self.kind == "docker":
                what += f" image {servers.image()}"
        return f"database: {what} ({self.reason})"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("leasequeue")
    group.addoption(
        "--backend",
        choices=("auto", "url", "docker", "embedded"),
        default="auto",
        help="where Postgres comes from: LEASEQUEUE_TEST_URL, a container, or the embedded wheel",
    )
    group.addoption(
        "--pooler",
        choices=("both", "direct", "pgbouncer"),
        default="both",
        help="run the database tests directly, through pgbouncer, or both (default)",
    )


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in _MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def _found(config: pytest.Config) -> _State:
    if _state not in config.stash:
        config.stash[_state] = _State(config)
    return config.stash[_state]


def pytest_report_header(config: pytest.Config) -> list[str]:
    state = _found(config)
    try:
        database = state.header()
    except Exception as error:
        raise pytest.UsageError(f"--backend {state.kind}: {error}") from error
    return [database, f"pgbouncer: {state.pgbouncer or state.no_pgbouncer}"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database" not in metafunc.fixturenames:
        return
    state, item = _found(metafunc.config), metafunc.definition
    ways = ["direct", "pgbouncer"]
    if item.get_closest_marker("direct_only"):
        ways.remove("pgbouncer")
    if item.get_closest_marker("needs_pgbouncer"):
        ways.remove("direct")
    wanted = metafunc.config.getoption("--pooler")
    if wanted != "both":
        ways = [way for way in ways if way == wanted]
    elif "pgbouncer" in ways and "direct" in ways and state.pgbouncer is None:
        ways.remove("pgbouncer")
        state.dropped += 1
    metafunc.parametrize("database", ways, indirect=True)


_TIMED = (
    *(f"tests/process/test_{name}" for name in ("attacks", "death", "outage", "signals")),
    "tests/schedule/test_pro",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under ``-n``, what is measured by the clock runs on one worker, one after another, and begins first.

    Most of those wait for a process or a lease, so the machine has room for the others beside them.
    """
    for item in items:
        if item.nodeid.startswith(_TIMED):
            item.add_marker(pytest.mark.xdist_group("timed"))
    items.sort(key=lambda item: not item.nodeid.startswith(_TIMED))


def pytest_runtest_setup(item: pytest.Item) -> None:
    state = _found(item.config)
    if item.get_closest_marker("needs_pgbouncer") and state.pgbouncer is None:
        pytest.skip(f"needs pgbouncer: {state.no_pgbouncer}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    state = _found(config)
    if state.dropped:
        terminalreporter.write_line(
            f"SKIPPED the second run of {state.dropped} test functions, through pgbouncer: {state.no_pgbouncer}",
            yellow=True,
        )
    if state.version is not None:
        terminalreporter.write_line(f"ran on PostgreSQL {state.version} ({state.kind})")


def pytest_unconfigure(config: pytest.Config) -> None:
    if _state in config.stash and (server := config.stash[_state].server) is not None:
        server.close()


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Server:
    """The server of this run; its databases are unlimited, its settings are not to be changed."""
    return _found(pytestconfig).start()


@pytest.fixture(scope="session")
def templates(server: Server) -> Iterator[Templates]:
    made = Templates(server)
    yield made
    made.close()


@pytest.fixture
def direct_url(server: Server, templates: Templates) -> Iterator[str]:
    """The URL of a fresh, empty database, straight to the server."""
    name = templates.empty()
    yield server.url(name)
    server.drop_database(name)


@pytest.fixture(scope="session")
def pgbouncer(server: Server) -> Iterator[PgBouncer]:
    """The pgbouncer of the second run: transaction mode, two server connections for each database."""
    try:
        running = PgBouncer(server)
    except pooler.Unavailable as error:
        pytest.skip(f"needs pgbouncer: {error}")
    yield running
    running.close()


@pytest.fixture
def make_pgbouncer(server: Server) -> Iterator[Callable[..., PgBouncer]]:
    """Further pgbouncers for one test: ``make_pgbouncer(pool_mode="session", pool_size=1)``.

    Takes what ``PgBouncer`` takes; ``server=`` puts it before another server.
    """
    running: list[PgBouncer] = []

    def make(server: Server = server, **options: object) -> PgBouncer:
        try:
            running.append(PgBouncer(server, **options))  # type: ignore[arg-type]
        except pooler.Unavailable as error:
            pytest.skip(f"needs pgbouncer: {error}")
        return running[-1]

    yield make
    for each in running:
        each.close()


@pytest.fixture
def database(request: pytest.FixtureRequest, server: Server, templates: Templates) -> Iterator[Database]:
    """A fresh database with the leasequeue tables (version 1, schema public), direct or through pgbouncer."""
    via: str = getattr(request, "param", "direct")
    bouncer: PgBouncer | None = request.getfixturevalue("pgbouncer") if via == "pgbouncer" else None
    name = templates.migrated()
    made = Database(server, name, bouncer.url(name) if bouncer else server.url(name), via)
    yield made
    made.close()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """An embedded server for this test alone: to be stopped, killed and restarted under load.

    Always embedded, whatever ``--backend`` says: 1 to 2 s, and no other test feels it.
    """
    private = servers.EmbeddedServer("a server for one test")
    yield private
    private.close()


@pytest.fixture
def own_database(own_server: Server) -> Iterator[Database]:
    """A fresh database with the leasequeue tables on ``own_server``, direct."""
    name = Templates(own_server).migrated()
    made = Database(own_server, name, own_server.url(name), "direct")
    yield made
    made.close()


@pytest.fixture
def outage_server(server: Server) -> Server:
    """The run's server, for tests that stop, kill or restart it; skipped aloud where it is not ours."""
    if not server.can_restart:
        pytest.skip(f"the {server.kind} server is not ours to stop; use --backend embedded or docker")
    return server
