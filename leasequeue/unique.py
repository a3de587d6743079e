"""How long a job keeps others of its key from being created, and what becomes of those. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from leasequeue import naming
from leasequeue.errors import ConfigurationError
from leasequeue.job import EXISTING, RAISE, REPLACE
from leasequeue.keys import Key, KeyLike

if TYPE_CHECKING:
    from leasequeue.codec import Signature

Until: TypeAlias = Literal["until_finished", "until_started"]
OnConflict: TypeAlias = Literal["existing", "replace", "raise"]

_STARTED = "s"
_PERIOD_MAX = dt.timedelta(days=36_500)


class Options(NamedTuple):
    """What was said about uniqueness; None where nothing was."""

    unique_key: KeyLike | None = None
    unique: Until | None = None
    unique_for: dt.timedelta | None = None
    on_conflict: OnConflict | None = None

    def over(self, before: Options) -> Options:
        """These, and what was said before where these say nothing."""
        return before._replace(**{name: said for name, said in self._asdict().items() if said is not None})


class Unique:
    """The uniqueness of a task's jobs.

    Args:
        task: the task's name.
        options: checked here.

    Raises:
        ConfigurationError: one is out of its range, or a key is missing.
    """

    def __init__(self, task: str, signature: Signature, options: Options) -> None:
        given: tuple[Any, ...] = options  # an application without a type checker gets a sentence
        key, unique, period, on_conflict = given
        if key is None:
            raise ConfigurationError(f"{task}: unique, unique_for and on_conflict say what a unique_key does: give one")
        if unique not in (None, "until_finished", "until_started"):
            raise ConfigurationError(f"{task}: unique is 'until_finished' or 'until_started', not {unique!r}")
        if on_conflict not in (None, EXISTING, REPLACE, RAISE):
            raise ConfigurationError(f"{task}: on_conflict is 'existing', 'replace' or 'raise', not {on_conflict!r}")
        if period is not None and not (isinstance(period, dt.timedelta) and dt.timedelta(0) < period <= _PERIOD_MAX):
            raise ConfigurationError(f"{task}: unique_for is a positive timedelta of at most 100 years, not {period!r}")
        self._key = Key("unique_key", task, key, signature.parameters, _check_key)
        self._fixed: dict[str, Any] = {"on_conflict": on_conflict or EXISTING}
        self._names = []
        if unique is not None or period is None:
            self._names.append("unique_key")
            if unique == "until_started":
                self._fixed["unique_until"] = _STARTED
        if period is not None:
            self._names.append("hold_key")
            self._fixed["hold_seconds"] = period.total_seconds()

    @property
    def needs_arguments(self) -> bool:
        return self._key.needs_arguments

    def fields(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a ``NewJob`` for a call with these arguments, defaults included; none where it has no key.

        Raises:
            InvalidArguments: the function of the key failed, or gave what cannot be one.
        """
        key = self._key.text(arguments)
        return {} if key is None else self._fixed | dict.fromkeys(self._names, key)


def unique(task: str, signature: Signature, options: Options) -> Unique | None:
    """The uniqueness that these options make, or None where nothing was said."""
    return Unique(task, signature, options) if any(each is not None for each in options) else None


def _check_key(text: Any) -> str:
    return naming.check("a unique_key", text)
