"""Finding the server: every host dialled, each with a bound, and the first that will do is taken.

    resolve ──> dial ──> ask (what is it? may one write there?) ──> taken | kept in reserve | refused

The hosts are begun one after another, a tenth of a second apart, or at once when the one before has failed; so a
host that never answers costs a tenth of a second, and one that answers quickly keeps the others from being asked.
Names are resolved in threads, since ``getaddrinfo`` has no bound of its own.
"""

from __future__ import annotations

import contextlib
import ipaddress
import queue
import re
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from leasequeue.db.urls import Host, Settings, default_hosts
from leasequeue.errors import DatabaseUnavailable

STAGGER_SECONDS = 0.1

# One round trip, by the simple protocol, which every pooler forwards. The pooler answers the login by itself, so
# that this is also the first proof of a server behind it.
_ASK = b"""SELECT pg_catalog.current_setting('transaction_isolation'),
    pg_catalog.current_setting('transaction_read_only'), pg_catalog.pg_is_in_recovery(),
    CASE WHEN pg_catalog.current_setting('transaction_read_only') = 'on' THEN
        (SELECT source FROM pg_catalog.pg_settings WHERE name = 'default_transaction_read_only') END"""

_UNSUPPORTED = re.compile(r"unsupported startup parameter:? *\"?(\w+)")


class Facts(NamedTuple):
    """What a server says of itself.

    Attributes:
        isolation: the level in which a plain statement runs there, e.g. ``read committed``.
        read_only: whether a plain statement may write.
        in_recovery: a standby.
        leaked: it is read-only only because another client of the pooler left a session setting behind.
    """

    isolation: str
    read_only: bool
    in_recovery: bool
    leaked: bool


class Dialled(NamedTuple):
    pgconn: pq.abc.PGconn
    host: Host
    facts: Facts


class _Failed(Exception):
    """This host will not do; the message says why."""


class _Attempt:
    """One address being dialled and asked. Never blocks."""

    def __init__(self, host: Host, params: Mapping[str, str | int], optional: frozenset[str]) -> None:
        self.host = host
        self._params = dict(params)
        self._optional = optional
        self._start()

    def _start(self) -> None:
        self._asking = False
        self._facts: Facts | None = None
        self.events = selectors.EVENT_WRITE
        self.pgconn = pq.PGconn.connect_start(make_conninfo("", **self._params).encode())
        if self.pgconn.status == pq.ConnStatus.BAD:
            raise _Failed(self._error())

    @property
    def stage(self) -> str:
        return "it let us in, but no statement was answered" if self._asking else "no answer"

    def step(self) -> Facts | None:
        """Go on, now that the socket is ready. None: not there yet.

        Raises:
            _Failed: it is over.
        """
        if self._asking:
            return self._ask()
        self._dial()
        return None

    def _dial(self) -> None:
        status = self.pgconn.connect_poll()
        if status == pq.PollingStatus.READING:
            self.events = selectors.EVENT_READ
        elif status == pq.PollingStatus.WRITING:
            self.events = selectors.EVENT_WRITE
        elif status == pq.PollingStatus.OK:
            self.pgconn.nonblocking = 1
            self.pgconn.send_query(_ASK)
            self._asking = True
            self._flush()
        else:
            said = self._error()
            unwanted = _UNSUPPORTED.search(said)
            if unwanted and unwanted.group(1) in self._params and unwanted.group(1) in self._optional:
                del self._params[unwanted.group(1)]
                self.close()
                self._start()
                return
            raise _Failed(said)

    def _flush(self) -> None:
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        self.events = both if self.pgconn.flush() else selectors.EVENT_READ

    def _ask(self) -> Facts | None:
        self.pgconn.consume_input()
        if self.events & selectors.EVENT_WRITE:
            self._flush()
        # The answer may come in pieces: the row with one step, the end of it with the next.
        while not self.pgconn.is_busy():
            result = self.pgconn.get_result()
            if result is None:
                if self._facts is None:
                    raise _Failed(self._error())
                return self._facts
            if result.status != pq.ExecStatus.TUPLES_OK:
                raise _Failed(_clean(result.error_message))
            row = [(result.get_value(0, column) or b"").decode() for column in range(4)]
            in_recovery = row[2] == "t"
            self._facts = Facts(row[0], row[1] == "on", in_recovery, row[3] == "session" and not in_recovery)
        return None

    def _error(self) -> str:
        return _clean(self.pgconn.error_message) or "the connection was closed"

    def close(self) -> None:
        self.pgconn.finish()


def _clean(message: bytes) -> str:
    lines = [line.strip() for line in message.decode("utf-8", "replace").splitlines() if line[:1] not in "\t"]
    return "; ".join(dict.fromkeys(line for line in lines if line))


def dial(
    settings: Settings,
    extra: Mapping[str, str | int],
    *,
    seconds: float,
    first: Host | None = None,
    must_write: bool = False,
) -> Dialled:
    """Dial until one host will do.

    Args:
        extra: parameters of our own; those of ``settings`` win. A pooler that refuses one is dialled without it.
        seconds: the bound for all of it together.
        first: the host to begin with (the last one that was good).
        must_write: refuse what cannot be written to, whatever ``target_session_attrs`` says.

    Raises:
        DatabaseUnavailable: none would do; the message lists what each of them said, and no secret.
    """
    search = _Search(settings, extra, seconds, first, must_write)
    try:
        return search.run()
    finally:
        search.close()


class _Search:
    def __init__(
        self,
        settings: Settings,
        extra: Mapping[str, str | int],
        seconds: float,
        first: Host | None,
        must_write: bool,
    ) -> None:
        self._settings = settings
        self._seconds = seconds
        self._attrs = settings.target_session_attrs
        if must_write and self._attrs in ("any", "prefer-standby", "primary"):
            self._attrs = "read-write"
        params = settings.params()
        self._optional = frozenset(extra) - frozenset(params)
        self._params = {**extra, **params}
        # Judged here, where all hosts are in sight; and each host is dialled with a bound of ours.
        for name in ("target_session_attrs", "connect_timeout", "load_balance_hosts"):
            self._params.pop(name, None)
        given = str(self._params.pop("hostaddr", "")).split(",")
        hosts = settings.hosts or default_hosts(settings) or (Host("", None),)
        pairs = [(host, given[i] if i < len(given) else "") for i, host in enumerate(hosts)]
        pairs.sort(key=lambda pair: pair[0] != first)  # stable: the others keep their order
        self._ready: deque[tuple[Host, str]] = deque()
        self._resolved: queue.SimpleQueue[tuple[Host, list[str], str]] = queue.SimpleQueue()
        self._resolving: set[Host] = set()
        for host, address in pairs:
            if address or _is_address(host.name):
                self._ready.append((host, address))
            elif host not in self._resolving:
                self._resolving.add(host)
                threading.Thread(
                    target=_resolve, args=(host, self._resolved), name="leasequeue-resolve", daemon=True
                ).start()
        self._active: list[_Attempt] = []
        self._reserve: Dialled | None = None
        self._said: list[str] = []

    def run(self) -> Dialled:
        deadline = time.monotonic() + self._seconds
        next_start = 0.0
        while (now := time.monotonic()) < deadline:
            self._take_resolved(0.0)
            if self._ready and now >= next_start:
                next_start = now + STAGGER_SECONDS if self._begin(*self._ready.popleft()) else 0.0
                continue
            if not self._active:
                if self._ready:
                    next_start = 0.0
                elif self._resolving:
                    self._take_resolved(deadline - now)
                else:
                    break
                continue
            until = min(deadline, next_start) if self._ready else deadline
            if self._resolving:
                until = min(until, now + 0.02)
            for attempt in self._select(max(0.0, until - now)):
                found, failed = self._advance(attempt)
                if found is not None:
                    return found
                if failed:
                    next_start = 0.0
        if self._reserve is not None:
            found, self._reserve = self._reserve, None
            return found
        raise DatabaseUnavailable(self._settings.hide(self._verdict()))

    def _verdict(self) -> str:
        late = [f"{_name(attempt.host)}: {attempt.stage} within {self._seconds:g} s" for attempt in self._active]
        late += [f"{_name(host)}: its name was not resolved within {self._seconds:g} s" for host in self._resolving]
        late += [f"{_name(host)}: not reached in time" for host, _ in self._ready]
        return f"cannot connect to {self._settings.masked}: {'; '.join([*self._said, *late])}"

    def _take_resolved(self, wait_seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            while self._resolving:
                host, addresses, error = self._resolved.get(wait_seconds > 0, wait_seconds or None)
                wait_seconds = 0.0
                self._resolving.discard(host)
                if error:
                    self._said.append(f"{_name(host)}: {error}")
                self._ready.extend((host, address) for address in addresses)

    def _begin(self, host: Host, address: str) -> bool:
        params = dict(self._params)
        for name, value in (("host", host.name), ("hostaddr", address), ("port", host.port)):
            params.pop(name, None)
            if value:
                params[name] = value
        try:
            self._active.append(_Attempt(host, params, self._optional))
        except (_Failed, psycopg.Error) as error:
            self._said.append(f"{_name(host)}: {error}")
            return False
        return True

    def _select(self, seconds: float) -> list[_Attempt]:
        # libpq may change the socket between two steps, so the set is made anew each time.
        with selectors.DefaultSelector() as selector:
            for attempt in self._active:
                selector.register(attempt.pgconn.socket, attempt.events, attempt)
            return [key.data for key, _ in selector.select(seconds)]

    def _advance(self, attempt: _Attempt) -> tuple[Dialled | None, bool]:
        """What was found, if it will do; and whether this attempt has failed."""
        try:
            facts = attempt.step()
            if facts is None:
                return None, False
            refusal = self._refusal(facts)
        except (_Failed, psycopg.Error) as error:
            facts, refusal = None, str(error)
        self._active.remove(attempt)
        if facts is not None:
            found = Dialled(attempt.pgconn, attempt.host, facts)
            if refusal is None:
                return found, False
            if self._attrs in ("any", "prefer-standby") and self._reserve is None:
                self._reserve = found
                return None, True
        attempt.close()
        self._said.append(f"{_name(attempt.host)}: {refusal}")
        return None, True

    def _refusal(self, facts: Facts) -> str | None:
        """Why this server will not do, or None. For ``any`` a server that can be written to is preferred."""
        writable = not facts.read_only or facts.leaked
        kind = "a standby" if facts.in_recovery else "read-only" if not writable else "a primary"
        good = {
            "any": writable,
            "read-write": writable,
            "read-only": not writable,
            "primary": not facts.in_recovery,
            "standby": facts.in_recovery,
            "prefer-standby": facts.in_recovery,
        }[self._attrs]
        return None if good else f"it is {kind}, and {self._attrs} is wanted"

    def close(self) -> None:
        for attempt in self._active:
            attempt.close()
        if self._reserve is not None:
            self._reserve.pgconn.finish()


def _is_address(name: str) -> bool:
    """Nothing to resolve: an address, a socket's directory, or nothing."""
    if not name or name.startswith(("/", "@")):
        return True
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _resolve(host: Host, into: queue.SimpleQueue[tuple[Host, list[str], str]]) -> None:
    try:
        found = socket.getaddrinfo(host.name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        into.put((host, [], f"its name cannot be resolved ({error})"))
    else:
        into.put((host, list(dict.fromkeys(str(entry[4][0]) for entry in found)), ""))


def _name(host: Host) -> str:
    return str(host) or "the local socket"
