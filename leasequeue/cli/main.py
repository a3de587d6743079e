"""``leasequeue``: the commands, and what an error becomes: a message on stderr and an exit status.

0 done · 1 refused: nothing was changed, or something is wrong with the answer · 64 usage · 69 the database cannot be
reached · 70 a fault of ours · 78 configuration: wrong or missing tables, application, settings (as in sysexits.h).

Each command is loaded when it is called: ``leasequeue --help`` loads click and nothing else.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import click

EXIT_REFUSED = 1
EXIT_USAGE = 64
EXIT_UNAVAILABLE = 69
EXIT_SOFTWARE = 70
EXIT_CONFIGURATION = 78
EXIT_INTERRUPTED = 130

# Name, module and attribute under leasequeue.cli, and what --help says of it. A command whose module is missing is left out.
_COMMANDS = {
    "migrate": ("migrate", "migrate", "Create or upgrade the tables."),
    "worker": ("worker", "worker", "Run jobs, under a supervisor."),
    "dev": ("worker", "dev", "Embedded database, migrate and worker in one."),
    "demo": ("demo", "demo", "Run the main job on real input, with processes killed on the way."),
    "status": ("status", "status", "Workers, queues, recent failures, and what needs attention."),
    "jobs": ("jobs", "jobs", "List, show, retry and cancel single jobs."),
    "queues": ("queues", "queues", "What each queue holds and who serves it; pause and resume."),
    "limits": ("limits", "limits", "How many jobs run at once, or start in a span: show, set, unset."),
    "workflows": ("workflows", "workflows", "Jobs that wait for each other: as a tree; cancel and retry them."),
    "schedules": ("schedules", "schedules", "What is due when, what became of it; add, change, pause, run."),
    "leases": ("leases", "leases", "Who leads and who asks; run a command as the holder of a lease."),
}


class Commands(click.Group):
    """The group of all commands, loaded one by one, with one way to end for all errors."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in _COMMANDS if _exists(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS or not _exists(cmd_name):
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        found: click.Command = getattr(importlib.import_module(f"leasequeue.cli.{module}"), attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][2]) for name in self.list_commands(ctx)])

    def main(  # type: ignore[override]  # never standalone: the errors end here
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> None:
        for stream in (sys.stdout, sys.stderr):
            # A locale that cannot print a name in the data must not end the command.
            with contextlib.suppress(AttributeError, ValueError):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        extra.pop("standalone_mode", None)
        words = list(sys.argv[1:] if args is None else args)
        try:
            status = super().main(words, prog_name or "leasequeue", standalone_mode=False, **extra)
        except Exception as error:  # noqa: BLE001  # whatever it is, it becomes an exit status
            status = _explain(error, debug="--debug" in words or bool(os.environ.get("LEASEQUEUE_DEBUG")))
        except KeyboardInterrupt:
            status = EXIT_INTERRUPTED
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            status = _reader_gone()
        sys.exit(status if isinstance(status, int) else 0)


def _exists(name: str) -> bool:
    return importlib.util.find_spec(f"leasequeue.cli.{_COMMANDS[name][0]}") is not None


def _explain(error: Exception, *, debug: bool) -> int:
    """Say what happened on stderr; returns the exit status."""
    if isinstance(error, click.Abort):
        return EXIT_INTERRUPTED
    if isinstance(error, click.ClickException):
        error.show()
        return EXIT_USAGE if isinstance(error, click.UsageError) else error.exit_code
    if isinstance(error, BrokenPipeError):
        return _reader_gone()
    from leasequeue.errors import (
        ConfigurationError,
        DatabaseUnavailable,
        LeaseQueueError,
        OutcomeUnknown,
        SchemaMismatch,
    )

    if debug:
        import traceback

        traceback.print_exception(error)
    if not isinstance(error, LeaseQueueError):
        if not debug:
            first_line = (str(error).strip().splitlines() or [""])[0]
            click.echo(
                f"leasequeue: unexpected {type(error).__qualname__}: {first_line}\n"
                f"This is a fault in leasequeue, or a server that it does not know; --debug shows where.",
                err=True,
            )
        return EXIT_SOFTWARE
    click.echo(f"leasequeue: {error}", err=True)
    if isinstance(error, DatabaseUnavailable):
        if not isinstance(error, OutcomeUnknown):
            click.echo(
                "Check that the server is up and that this is its address and an existing database (--url, else "
                "LEASEQUEUE_URL, LEASEQUEUE_URL_FILE or DATABASE_URL).",
                err=True,
            )
        return EXIT_UNAVAILABLE
    return EXIT_CONFIGURATION if isinstance(error, ConfigurationError | SchemaMismatch) else EXIT_REFUSED


def _reader_gone() -> int:
    """``leasequeue jobs list | head``: the reader has had enough. Nothing more can be said on stdout, nor need be."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    return 1  # as click and rich end where they notice it themselves


@click.group(
    "leasequeue",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="The database is --url, else LEASEQUEUE_URL, the file that LEASEQUEUE_URL_FILE names, or DATABASE_URL. "
    "APP is module:attr or module:factory(); LEASEQUEUE_APP is its default.",
)
@click.version_option(version("leasequeue"), prog_name="leasequeue")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def main(debug: bool) -> None:
    """Jobs, schedules and leadership on the PostgreSQL that an application already has."""


if __name__ == "__main__":
    main()
