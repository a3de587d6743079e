"""Limits: what an operator sets, what the code declares, and which of them is in force.

**Precedence**, for how many run at once and for the rate each by itself: the limit of the exact key before that of its first
part; of two of one name an operator's before the code's; and the job's own, which its task gave it, last.

**Which release decides.** The limits that the code declares (``lq.queue(limit=...)``, ``lq.limit(...)``) are written by each
worker process before it claims its first job, as one set. In a rolling deploy old and new ones start again and again; what the
newer one says stays, also that it says nothing of a name any more. The release and the time of its deployment are said as for
schedules: see ``ops/schedules.py``.

Applications that share the tables keep apart by the APP of their workers' command line: each adds and removes its own. A name
belongs to the application that declared it first, until that one gives it up; the other is told so in its log.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leasequeue import naming
from leasequeue.db import limits as db
from leasequeue.db.statement import Program, Target
from leasequeue.errors import ConfigurationError
from leasequeue.limit import Limit
from leasequeue.moment import moment, say
from leasequeue.ops.json_text import from_json
from leasequeue.ops.release import Release

_ROUNDS = 20
_RELEASES_KEPT = 50
NO_BOUND = 2**31 - 1
"""What is written for ``none``: a limit that is never reached, in place of one that the code declares."""

Declared = Sequence[tuple[str, Limit]]


@dataclass(frozen=True, slots=True)
class Wrote:
    """What became of the limits of the code.

    Attributes:
        changed: names whose limit is another now, or gone.
        message: a sentence for people, where there is something to say.
        warning: they were not written, or not all of them.
    """

    changed: tuple[str, ...]
    message: str | None
    warning: bool = False


def check_name(name: Any) -> str:
    """A limit's name.

    Raises:
        ConfigurationError: it cannot be one.
    """
    text = naming.check("a limit's name", name)
    if text.partition(":")[2] == "" and ":" in text:
        raise ConfigurationError(
            f"a limit is named by an exact key ('user:7'), by the first part of keys ('user'), or as task:NAME, queue:NAME or "
            f"fair:NAME, not {text!r}: nothing follows its colon"
        )
    return text


def set_limit(target: Target, schema: str, name: str, limit: Limit, by: str) -> Program[int]:
    """Set an operator's limit, in place of the one that was set before; how many waiting keys were woken, at least.

    Raises:
        ConfigurationError: the name cannot be one, or nothing is limited.
    """
    check_name(name)
    if limit == Limit():
        raise ConfigurationError(f"limit {name!r}: give a number of jobs at once, a rate, or both")
    yield db.limit_statements(schema).set, db.values(name, limit, by)
    return (yield from db.wake(schema, name))


def unset_limit(target: Target, schema: str, name: str) -> Program[bool]:
    """Take an operator's limit away; False where there was none. What the code declares is in force again."""
    if not (yield db.limit_statements(schema).unset, {"name": name}):
        return False
    yield from db.wake(schema, name)
    return True


def declare(target: Target, schema: str, app: str, limits: Declared, release: Release, by: str) -> Program[Wrote]:
    """Write the limits of the code, unless a newer release says otherwise."""
    known = db.limit_statements(schema)
    limits = sorted(limits)
    names = [name for name, _ in limits]
    for _ in range(_ROUNDS):
        rows = yield known.read_declared, {"app": app, "names": names}
        found = yield known.read_app, {"app": app}
        if not found:
            if not limits:
                return Wrote((), None)
            yield known.add_app, {"app": app}
            continue
        version, newest, newest_at, text = found[0]
        ours = {row[0]: Limit(*row[1:4]) for row in rows if row[4]}
        theirs = {row[0]: row[5] for row in rows if not row[4]}
        wanted = {name: limit for name, limit in limits if name not in theirs}
        now = (yield known.now, {})[0][0]
        releases = _seen(text)
        identity = release.name or _identity(limits)
        seen = identity in releases and not release.force
        first = float(now) if release.force else releases.get(identity, float(now))
        deployed = release.deployed_at.timestamp() if release.deployed_at and not release.force else first
        if newest_at is not None and deployed < newest_at and not release.force:
            if ours == wanted:
                return Wrote((), None)
            return Wrote(
                (),
                f"the limits of this code are not written: those of release {newest or 'without a name'} of "
                f"{say(moment(newest_at))} count as newer. If this code is the newer: leasequeue limits sync {app}; or say so "
                f"from now on, by LEASEQUEUE_DEPLOYED_AT, or a new LEASEQUEUE_RELEASE",
                warning=True,
            )
        if not (seen and newest == release.name and newest_at == deployed and ours == wanted):
            releases[identity] = deployed
            kept = dict(sorted(releases.items(), key=lambda item: item[1])[-_RELEASES_KEPT:])
            words = db.declared(app, version, limits, release=release.name, deployed_at=deployed, releases=kept, by=by)
            wrote = yield known.declare, words
            if not wrote:
                continue  # another was first, and is read now
            changed = tuple(name for what, name in wrote if what != "app")
        else:
            changed = ()
        for name in changed:
            yield from db.wake(schema, name)
        return _wrote(changed, wanted, theirs)
    raise ConfigurationError("the limits of this code were not written: others change them again and again; try again")


def _wrote(changed: tuple[str, ...], wanted: dict[str, Limit], theirs: dict[str, str]) -> Wrote:
    said = [f"{name!r}: {wanted.get(name, 'not declared any more')}" for name in changed]
    if theirs:
        others = ", ".join(f"{name!r} ({app})" for name, app in sorted(theirs.items()))
        said.append(f"not written, since another application on these tables declares a limit of that name: {others}")
    return Wrote(changed, f"limits of the code: {'; '.join(said)}" if said else None, warning=bool(theirs))


def _seen(text: str) -> dict[str, float]:
    """When each release was first seen here, whoever wrote the row."""
    found = from_json(text)
    items = found.items() if isinstance(found, dict) else ()
    return {str(key): float(value) for key, value in items if isinstance(value, int | float)}


def _identity(limits: Declared) -> str:
    text = json.dumps([[name, *limit] for name, limit in limits])
    return "limits " + hashlib.sha256(text.encode()).hexdigest()[:16]
