"""Plain data into words: tables for people, JSON for programs.

On a terminal, tables have its width and a little colour. Elsewhere lines are as long as they need to be (unless COLUMNS
says otherwise) and carry no escapes. What stands in the database was written by anybody: control characters are
shown, never sent to the terminal, and nothing is read as markup.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from leasequeue.job import Progress

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_UNBOUNDED = 100_000
"""The width where there is none: a table is as wide as its cells."""

Cell = str | int | Text | None


def console(*, stderr: bool = False) -> Console:
    """For the stream as it is now."""
    stream = sys.stderr if stderr else sys.stdout
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() and int(columns) > 0 else None
    if width is None and not stream.isatty():
        width = _UNBOUNDED
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Table:
    """A table. A column whose name begins with ``>`` is set to the right; the last one gets what room is left."""
    made = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False
    )
    for place, name in enumerate(columns):
        right, last = name.startswith(">"), place == len(columns) - 1
        made.add_column(name.lstrip(">"), justify="right" if right else "left", no_wrap=not last, overflow="ellipsis")
    for row in rows:
        made.add_row(*(cell(value) for value in row))
    return made


def cell(value: Cell) -> Text:
    """The text of a cell, on one line."""
    if isinstance(value, Text):
        return value
    return Text("" if value is None else clean(str(value), keep_lines=False))


def clean(text: str, *, keep_lines: bool = True) -> str:
    """Control and direction characters as escapes; line ends too, unless they are kept."""
    text = _CONTROL.sub(lambda found: _escape(found.group()), text)
    return text if keep_lines else text.replace("\n", "\\n").replace("\t", "\\t")


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def count(number: int, *, capped: bool = False) -> str:
    """``1,234``, or ``100,000+`` where counting stopped there."""
    return f"{number:,}{'+' if capped else ''}"


def duration(seconds: float | None) -> str:
    """``0.3 s``, ``45 s``, ``12 min``, ``3 h 5 min``, ``2 d 4 h``; empty for None."""
    if seconds is None:
        return ""
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    if seconds < 9.95:
        return f"{sign}{seconds:.1f} s"
    if seconds < 120:
        return f"{sign}{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{sign}{minutes} min"
    if minutes < 48 * 60:
        return f"{sign}{minutes // 60} h {minutes % 60} min"
    return f"{sign}{minutes // 1440} d {minutes % 1440 // 60} h"


def time(at: dt.datetime | None) -> str:
    """``2026-11-30 06:36:45Z``; empty for None."""
    return "" if at is None else at.astimezone(dt.UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def since(at: dt.datetime | None, now: dt.datetime | None) -> str:
    """``12 min ago`` or ``in 45 s``, by the database's clock."""
    if at is None or now is None:
        return ""
    seconds = (now - at).total_seconds()
    return f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}"


def progress(said: Progress | None) -> str:
    """``30/120 (25 %)``, or ``30`` where the total is not known; empty for None."""
    if said is None:
        return ""
    if said.total is None:
        return f"{said.done:g}"
    share = "" if said.fraction is None else f" ({said.fraction:.0%})".replace("%", " %")
    return f"{said.done:g}/{said.total:g}{share}"


def pretty(value: Any) -> str:
    """JSON over several lines; a text that could not be read as JSON as it is."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return str(value)


def as_json(answer: Any) -> str:
    """JSON text of our dataclasses: field names as keys, times in ISO 8601, properties left out."""
    return json.dumps(plain(answer), indent=2)


def plain(value: Any) -> Any:
    """What ``json`` can write."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def echo_json(answer: Any) -> None:
    """Print as JSON."""
    click.echo(as_json(answer))
