"""What is done to schedules: added, changed, paused, run by hand, and brought in line with the code of a release.

All of it are programs, run in a caller's transaction or on a connection of our own. A change is written under the version
that was read, so of two who change a schedule at once one is told to look again.

**Which release decides.** The schedules of the code are written when a worker starts, with the name of its release and the
time of its deployment. In a blue/green deploy both sides start again and again; what the newer one says stays. The release
is ``LEASEQUEUE_RELEASE``; without it, each definition is its own. The time is ``LEASEQUEUE_DEPLOYED_AT``; without it, the
first time that this release was seen here, which is kept in the row.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from leasequeue.cron import Spec
from leasequeue.db.schedules import (
    Definition,
    Row,
    canonical,
    fire_params,
    params,
    read,
    run_now,
    schedule_statements,
)
from leasequeue.db.statement import Program, Target
from leasequeue.errors import ConfigurationError, DuplicateSchedule, ScheduleRefused
from leasequeue.moment import moment, say
from leasequeue.ops.json_text import from_json
from leasequeue.ops.release import Release
from leasequeue.tick import Policy, settle

_ROUNDS = 20
_RELEASES_KEPT = 50


@dataclass(frozen=True, slots=True)
class Synced:
    """What became of one schedule of the code.

    Attributes:
        change: ``added``, ``changed``, ``unchanged`` or ``kept`` (what is there was not overwritten).
        message: a sentence for people.
    """

    name: str
    change: str
    message: str


def sync(target: Target, schema: str, definition: Definition, release: Release, by: str) -> Program[Synced]:
    """Write a schedule of the code, unless a newer release says otherwise."""
    known = schedule_statements(schema)
    for _ in range(_ROUNDS):
        row = yield from read(schema, definition.name)
        if row is None:
            now = (yield known.now, {})[0][0]
            deployed = release.deployed_at or now
            first = _spec(definition).after(now)
            meta = {"releases": {_identity(definition, release): deployed.timestamp()}}
            words = params(definition, next_at=first, release=release.name, deployed_at=deployed, meta=meta)
            if (yield known.insert, words | {"by": by}):
                return Synced(definition.name, "added", f"schedule {definition.name!r}: added, first due {say(first)}")
            continue
        if not row.definition.decorated and not release.force:
            return Synced(
                definition.name, "kept",
                f"schedule {definition.name!r} of the code is not written: one of that name was added at run time; remove "
                f"that one, or give this one another name",
            )  # fmt: skip
        answer, update = _judge(row, definition, release)
        if update is None:
            return answer
        if (yield known.update, update | {"version": row.version, "by": by}):
            return answer
    raise ScheduleRefused(definition.name, "others change it again and again: try again")


def _judge(row: Row, definition: Definition, release: Release) -> tuple[Synced, dict[str, Any] | None]:
    """What to say, and what to write if anything."""
    name, now = definition.name, row.now
    found = row.meta.get("releases")
    releases = {k: v for k, v in found.items() if isinstance(v, int | float)} if isinstance(found, dict) else {}
    identity = _identity(definition, release)
    first_seen = now.timestamp() if release.force else releases.get(identity, now.timestamp())
    deployed = release.deployed_at.timestamp() if release.deployed_at and not release.force else first_seen
    seen = identity in releases
    releases[identity] = deployed
    kept = dict(sorted(releases.items(), key=lambda item: item[1])[-_RELEASES_KEPT:])
    meta = row.meta | {"releases": kept}
    newer = release.force or row.deployed_at is None or deployed >= row.deployed_at
    same = row.definition == definition
    next_at = moment(row.next_at)
    stamp: dict[str, Any] = {
        "release": release.name,
        "deployed_at": moment(deployed),
        "meta": meta,
    }
    if same and (seen or not newer) and (not newer or row.release == release.name):
        return Synced(name, "unchanged", f"schedule {name!r}: unchanged"), None
    if same:
        if not newer:
            stamp["release"], stamp["deployed_at"] = row.release, moment(row.deployed_at)
        words = params(row.definition, next_at=next_at, **stamp) | {"changed": None}
        return Synced(name, "unchanged", f"schedule {name!r}: unchanged"), words
    if not newer:
        return (
            Synced(
                name, "kept",
                f"schedule {name!r} keeps the definition of release {row.release or 'without a name'} of "
                f"{say(moment(row.deployed_at))}, which counts as newer than the code here. If this code is the newer: "
                f"leasequeue schedules sync APP; or say so from now on, by LEASEQUEUE_DEPLOYED_AT, or a new LEASEQUEUE_RELEASE",
            ),
            None,
        )  # fmt: skip
    # What is due already stays due: no due time falls between two definitions.
    if row.definition.spec != definition.spec and (next_at is None or next_at > now):
        next_at = _spec(definition).after(now)
    changed = _difference(row.definition, definition, release)
    words = params(definition, next_at=next_at, **stamp) | {"changed": changed}
    return Synced(name, "changed", f"schedule {name!r}: {changed}"), words


def add(target: Target, schema: str, definition: Definition, by: str) -> Program[dt.datetime | None]:
    """Add a schedule at run time; when it is first due.

    Raises:
        DuplicateSchedule: there is one of that name.
    """
    known = schedule_statements(schema)
    now = (yield known.now, {})[0][0]
    first = _spec(definition).after(now)
    if not (yield known.insert, params(definition, next_at=first) | {"by": by}):
        row = yield from read(schema, definition.name)
        where = "in the code" if row is not None and row.definition.decorated else "added at run time"
        raise DuplicateSchedule(definition.name, where)
    return first


def change(
    target: Target, schema: str, name: str, changes: dict[str, Any], times: dict[str, Any], by: str
) -> Program[None]:
    """Change a schedule that was added at run time.

    Args:
        changes: fields of ``Definition``, but for ``spec``.
        times: see :func:`retimed`; empty: they stay.

    Raises:
        ScheduleRefused: there is none, or it stands in the code.
        ConfigurationError: what it would become cannot be.
    """
    known = schedule_statements(schema)
    for _ in range(_ROUNDS):
        row = yield from read(schema, name)
        if row is None:
            raise ScheduleRefused(name, "there is none of that name; `leasequeue schedules` lists them")
        if row.definition.decorated:
            raise ScheduleRefused(name, "it stands in the code: change it there, or pause it here")
        spec = retimed(row.definition.spec, times) if times else row.definition.spec
        made = replace(row.definition, spec=spec, **changes)
        if "options" not in changes:
            made = replace(made, options=_still_true(row.definition, made))
        if made.catch_up == "all" and made.overlap == "skip":
            raise ConfigurationError(
                f"schedule {name!r}: catch_up 'all' wants a run for each due time and overlap 'skip' none beside another: "
                f"change both"
            )
        next_at = moment(row.next_at)
        if made.spec != row.definition.spec and (next_at is None or next_at > row.now):
            next_at = _spec(made).after(row.now)
        words = params(made, next_at=next_at, meta=row.meta or None)
        words |= {"version": row.version, "by": by, "changed": _difference(row.definition, made, Release())}
        if made == row.definition or (yield known.update, words):
            return
    raise ScheduleRefused(name, "others change it again and again: try again")


def _still_true(old: Definition, new: Definition) -> str:
    """What of the options holds for a task or arguments that were changed by their names alone.

    A key of a limit was made of the old ones; where it is missing, the worker that claims the job makes it.
    """
    if old.task != new.task:
        return "{}"
    if old.args == new.args:
        return old.options
    kept = {
        key: value
        for key, value in json.loads(old.options).items()
        if key in ("expires_seconds", "start_by", "max_attempts")
    }
    return json.dumps(kept, sort_keys=True)


def retimed(spec: str | None, times: dict[str, Any]) -> str:
    """A spec with some of its times changed, as JSON text; the zone and the limits of the old one stay.

    Args:
        spec: the old one; None: there is none, and the zone is UTC unless it is given.
        times: ``cron`` or ``every`` (seconds), ``tz``, ``start``, ``end`` as ``Spec.to_json`` writes them.

    Raises:
        ConfigurationError: they make no spec.
    """
    found = from_json(spec)
    old = found if isinstance(found, dict) else {}
    kept = {
        key: value for key, value in old.items() if not (key in ("cron", "every") and times.keys() & {"cron", "every"})
    }
    return canonical(json.dumps(Spec.from_json({"tz": "UTC"} | kept | times).to_json()))


def set_paused(target: Target, schema: str, name: str, paused: bool, by: str) -> Program[bool]:
    """Pause or resume; False where it was so already.

    Raises:
        ScheduleRefused: there is none of that name.
    """
    if not paused:
        yield from _settle_paused(schema, name, by)
    if (yield schedule_statements(schema).pause, {"name": name, "paused": paused, "by": by}):
        return True
    if (yield from read(schema, name)) is None:
        raise ScheduleRefused(name, "there is none of that name; `leasequeue schedules` lists them")
    return False


def _settle_paused(schema: str, name: str, by: str) -> Program[None]:
    """What came due in the pause ends as paused, also where nobody was there to settle it: a resume must not run it."""
    while True:
        row = yield from read(schema, name)
        next_at = moment(row.next_at) if row is not None else None
        if row is None or row.paused_at is None or next_at is None or next_at > row.now:
            return
        try:
            settled = settle(name, _spec(row.definition), Policy(), next_at, row.now, paused=True)
        except ConfigurationError:
            return  # its times cannot be read; nothing of it runs
        words = fire_params(schema, name, row.version, next_at, settled, paused=True, by=by)
        if not (yield schedule_statements(schema).fire, words):
            return  # somebody else is at it


def remove(target: Target, schema: str, name: str, by: str, *, live: bool = False) -> Program[None]:
    """Remove a schedule; its ledger stays.

    Args:
        live: a live worker registers it as one of its code.

    Raises:
        ScheduleRefused: there is none, or it would come back with the next start of a worker.
    """
    row = yield from read(schema, name)
    if row is None:
        raise ScheduleRefused(name, "there is none of that name; `leasequeue schedules` lists them")
    if row.definition.decorated and live:
        raise ScheduleRefused(
            name,
            "it stands in the code of a live worker and would come back with its next start: remove it there, or pause it",
        )
    if not (yield schedule_statements(schema).remove, {"name": name, "by": by}):
        raise ScheduleRefused(name, "somebody else has removed it at this moment")


def fire_now(target: Target, schema: str, name: str, by: str) -> Program[int]:
    """Enqueue its job now; the id.

    Raises:
        ScheduleRefused: there is none of that name.
    """
    id = yield from run_now(schema, name, by)
    if id is None:
        raise ScheduleRefused(name, "there is none of that name; `leasequeue schedules` lists them")
    return id


def _spec(definition: Definition) -> Spec:
    return Spec.from_json(json.loads(definition.spec))


def _identity(definition: Definition, release: Release) -> str:
    if release.name:
        return release.name
    text = json.dumps(asdict(definition), sort_keys=True)
    return "definition " + hashlib.sha256(text.encode()).hexdigest()[:16]


def _difference(old: Definition, new: Definition, release: Release) -> str:
    parts = [
        f"{field} was {getattr(old, field)!r}, is {getattr(new, field)!r}"
        for field in Definition.__slots__
        if getattr(old, field) != getattr(new, field)
    ]
    by = f" by release {release.name}" if release.name else ""
    return f"redefined{by}: {'; '.join(parts)}"[:2000]


def definitions_from_json(items: Sequence[dict[str, Any]]) -> list[Definition]:
    """Definitions as another process of ours has written them."""
    try:
        return [Definition(**item) for item in items]
    except TypeError as error:
        raise ConfigurationError(f"a definition of a schedule cannot be read: {error}") from error
