"""Which gate the jobs of a task pass: the limit that they wait at, and its key. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leasequeue import naming
from leasequeue.errors import ConfigurationError
from leasequeue.keys import Key, KeyLike
from leasequeue.limit import OF_SHARE, OF_TASK, Limit, RateLike, check_key, parse

if TYPE_CHECKING:
    from leasequeue.codec import Signature


class Gate:
    """The gate of a task: one key for all of its jobs, or one that a function makes of their arguments.

    Args:
        task: the task's name.
        limit: what the jobs bring along; a limit declared for the key elsewhere, or set by an operator, goes before it.
        key: None where the task itself is what is limited.
        shares: keys share the queue fairly, and are limited only where ``limit`` says so.
    """

    def __init__(self, task: str, limit: Limit, key: Key | None, shares: bool) -> None:
        self.limit = limit
        self._key = key
        self._of_task = OF_TASK + task
        self._prefix = OF_SHARE if shares else ""

    @property
    def needs_arguments(self) -> bool:
        return self._key is not None

    def key(self, arguments: Mapping[str, Any]) -> str | None:
        """The key of a call with these arguments, defaults included; None: it passes no gate.

        Raises:
            InvalidArguments: the function of the key failed, or gave what cannot be one.
        """
        if self._key is None:
            return self._of_task
        text = self._key.text(arguments)
        return None if text is None else self._prefix + text


def gate(
    task: str,
    signature: Signature,
    *,
    limit: int | None,
    rate: RateLike | None,
    limit_key: KeyLike | None,
    fair_key: KeyLike | None,
) -> Gate | None:
    """The gate that these options of a task make, or None where they are all None.

    Raises:
        ConfigurationError: one is out of its range, or they do not go together.
    """
    if limit is None and rate is None and limit_key is None and fair_key is None:
        return None
    if limit_key is not None and fair_key is not None:
        raise ConfigurationError(
            f"{task}: give limit_key or fair_key, not both: a job waits at one gate; limit and rate bound each key of either"
        )
    bounds = parse(task, limit, rate)
    if limit_key is not None:
        return Gate(task, bounds, Key("limit_key", task, limit_key, signature.parameters, check_key), False)
    if fair_key is not None:
        return Gate(task, bounds, Key("fair_key", task, fair_key, signature.parameters, _check_share), True)
    naming.check("a limited task's name", OF_TASK + task)
    return Gate(task, bounds, None, False)


def _check_share(text: Any) -> str:
    return naming.check("a fair_key", OF_SHARE + naming.check("a fair_key", text)).removeprefix(OF_SHARE)
