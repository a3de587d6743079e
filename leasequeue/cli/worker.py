"""``leasequeue worker`` and ``leasequeue dev``: words into ``WorkerOptions``. No application code is imported here."""

from __future__ import annotations

import datetime as dt
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from leasequeue.errors import ConfigurationError

if TYPE_CHECKING:
    from leasequeue.worker.options import WorkerOptions

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SLOTS = 10
SLOTS_MAX = 10_000
DEV_DATABASE = "leasequeue"


def read_queues(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[tuple[str, int, int], ...]:
    """``mail=10:high=2,default=4``: name, slots, how many are reserved. A name alone has ten slots. None: every queue."""
    if value is None:
        return ()
    from leasequeue import naming

    found: dict[str, tuple[int, int]] = {}
    for word in map(str.strip, value.split(",")):
        # From the right: a queue's name may hold a "=" itself.
        rest, _, high = word.rpartition(":high=") if ":high=" in word else (word, "", "0")
        name, separator, slots = rest.rpartition("=") if "=" in rest else (rest, "", "")
        if separator and not _is_number(slots.strip()):
            raise click.BadParameter(f"{word!r}: write name=slots, for example mail=10")
        size = int(slots) if separator else DEFAULT_SLOTS
        if not 1 <= size <= SLOTS_MAX:
            raise click.BadParameter(f"{word!r}: a queue has 1 to {SLOTS_MAX} slots")
        if not _is_number(high.strip()) or not int(high) < size:
            raise click.BadParameter(
                f"{word!r}: write name=slots:high=reserved, for example mail=10:high=2; of {size} slots at most {size - 1} are "
                f"for jobs of a priority above 0 alone, or no other job would run"
            )
        try:
            name = naming.check("a queue's name", name.strip())
        except ConfigurationError as error:
            raise click.BadParameter(f"{word!r}: {error}") from error
        if name in found:
            raise click.BadParameter(f"queue {name!r} is named twice")
        found[name] = size, int(high)
    return tuple((name, size, high) for name, (size, high) in found.items())


def read_address(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """``127.0.0.1:9101``; ``:9101`` or ``9101`` is this machine only."""
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not _is_number(port) or int(port) > 65535:
        raise click.BadParameter(f"{value!r}: write host:port, for example 127.0.0.1:9101")
    return host.strip("[]") or "127.0.0.1", int(port)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _app(function: F) -> F:
    return click.argument("app", envvar="LEASEQUEUE_APP")(function)


def _options(function: F) -> F:
    """The options that ``worker`` and ``dev`` share."""
    for option in (
        click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks."),
        click.option("--log-level", default="info", show_default=True,
                     type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False)),
        click.option("--log-format", default="text", show_default=True, type=click.Choice(["text", "json"])),
        click.option("--schema", metavar="NAME", help="Schema of the tables; else what the application says."),
        click.option("--http", metavar="HOST:PORT", callback=read_address, help="Serve /healthz and /readyz there."),
        click.option("--max-abandoned", default=3, show_default=True, type=click.IntRange(1, 1000),
                     help="A job whose process died so often has failed."),
        click.option("--ttl", default=30.0, show_default=True, type=click.FloatRange(0.1, 86_400.0), metavar="SECONDS",
                     help="How long a lease lasts without a renewal: what a lost machine costs."),
        click.option("--shutdown-timeout", default=25.0, show_default=True, type=click.FloatRange(0.0, 86_400.0),
                     metavar="SECONDS", help="How long running jobs may go on after the first signal."),
        click.option("--processes", default=1, show_default=True, type=click.IntRange(1, 256), help="Worker processes."),
        click.option("--queues", metavar="NAME=SLOTS,...", callback=read_queues,
                     help=f"Queues and how many jobs of each run at once in a process, as in mail=10,default=4; otherwise "
                     f"every queue that a task of the application names, {DEFAULT_SLOTS} each. mail=10:high=2 keeps 2 of "
                     f"the 10 for jobs of a priority above 0."),
    ):  # fmt: skip
        function = option(function)
    return function


@click.command()
@_app
@_options
@click.option(
    "--url", metavar="URL", help="The database; else what the application says, LEASEQUEUE_URL(_FILE) or DATABASE_URL."
)
@click.option(
    "--control-url",
    envvar="LEASEQUEUE_CONTROL_URL",
    metavar="URL",
    help="A way to the same database for renewals alone, past a small pooler.",
)
@click.option("--poll-only", is_flag=True, help="Never LISTEN; poll every 20 to 100 ms.")
def worker(**words: Any) -> None:
    """Run the jobs of an application.

    APP is module:attr or module:factory(). SIGTERM or Ctrl-C: running jobs may finish, unstarted ones go back; a second
    signal, more than a second later: now.
    """
    _run(options_from(**words))


@click.command()
@_app
@_options
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".leasequeue"),
    show_default=True,
    help="Where the embedded database lies.",
)
@click.option("--port", type=click.IntRange(1, 65535), help="Its port; otherwise the last one, or any free one.")
def dev(folder: Path, port: int | None, **words: Any) -> None:
    """Embedded database, migrate and worker in one command, for development.

    The worker gets LEASEQUEUE_URL (and DATABASE_URL, where that is not set). An application that configures a database
    of its own keeps it. Other shells: export LEASEQUEUE_URL_FILE=.leasequeue/url
    """
    options = options_from(**words)
    for name in ("LEASEQUEUE_URL", "LEASEQUEUE_URL_FILE"):
        if os.environ.get(name, "").strip() and not _is_ours(name, folder):
            raise ConfigurationError(
                f"{name} names a database already, and `leasequeue dev` brings its own: unset it, or run "
                f"`leasequeue migrate` and `leasequeue worker {options.app}` on that one"
            )
    from leasequeue import embedded
    from leasequeue.config import Config
    from leasequeue.db.urls import Settings
    from leasequeue.ops.actions import ensure_schema
    from leasequeue.ops.migrate import migrate

    schema = Config(options.schema).schema
    with embedded.start(folder, port=port, progress=_say) as server:
        url = server.ensure_database(DEV_DATABASE)
        _keep_url(folder / "url", url)
        ensure_schema(Settings.parse(url), schema)
        migrate(Settings.parse(url), schema, _say)
        os.environ["LEASEQUEUE_URL"] = url
        # What is edited and started here is the newest, also when it is edited back.
        os.environ.setdefault("LEASEQUEUE_DEPLOYED_AT", dt.datetime.now(dt.UTC).isoformat())
        if not os.environ.get("DATABASE_URL"):
            os.environ["DATABASE_URL"] = url
        _say(f"for other shells: export LEASEQUEUE_URL_FILE={(folder / 'url').resolve()}")
        _run(options)


def _is_ours(name: str, folder: Path) -> bool:
    """Whether a shell that was set up for this folder names its database by the file."""
    return name == "LEASEQUEUE_URL_FILE" and Path(os.environ[name].strip()).resolve() == (folder / "url").resolve()


def _keep_url(path: Path, url: str) -> None:
    """Write the URL, with its password, for this user alone."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(url + "\n")
    part.replace(path)


def options_from(
    *,
    app: str,
    queues: tuple[tuple[str, int, int], ...],
    processes: int,
    ttl: float,
    shutdown_timeout: float,
    http: tuple[str, int] | None,
    schema: str | None,
    log_format: str,
    log_level: str,
    max_abandoned: int,
    url: str | None = None,
    control_url: str | None = None,
    poll_only: bool = False,
) -> WorkerOptions:
    """The options as the supervisor wants them.

    Raises:
        ConfigurationError: a URL or the schema's name cannot be one; the message shows no password.
    """
    from leasequeue.db.urls import Settings
    from leasequeue.worker.options import WorkerOptions

    for each in (url, control_url):
        if each:
            Settings.parse(each)
    if schema is not None:
        from leasequeue.config import check_schema

        check_schema(schema)
    return WorkerOptions(
        app=app,
        queues=tuple((name, size) for name, size, _ in queues),
        reserved=tuple((name, high) for name, _, high in queues if high),
        processes=processes,
        ttl_seconds=ttl,
        shutdown_timeout_seconds=shutdown_timeout,
        http=http,
        schema=schema,
        url=url or None,
        control_url=control_url or None,
        log_format=log_format,
        log_level=log_level.lower(),
        poll_only=poll_only,
        max_abandoned=max_abandoned,
    )


def _run(options: WorkerOptions) -> None:
    if os.name != "posix":
        raise ConfigurationError(
            "a worker needs POSIX (fork, signals, pipes) and does not run on Windows: use WSL or a container; enqueueing and "
            "the other commands work here"
        )
    from leasequeue.worker import supervisor

    try:
        status = supervisor.main(options)
    except OSError as error:
        if options.http is None or error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
            raise
        raise ConfigurationError(
            f"cannot serve health on {options.http[0]}:{options.http[1]} ({error.strerror}): "
            f"choose another address with --http, or stop what listens there"
        ) from error
    if status:
        raise SystemExit(status)


def _say(sentence: str) -> None:
    click.echo(f"leasequeue: {sentence}", err=True)
