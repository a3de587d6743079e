"""How the attempts of a task are run: the options of ``@lq.task`` that say so, checked. Pure."""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from leasequeue.errors import ConfigurationError

if TYPE_CHECKING:
    from leasequeue.context import JobContext
    from leasequeue.retry import RetryIf, Wait

Executor: TypeAlias = Literal["thread", "process"]
OnSoftTimeout: TypeAlias = "Callable[[JobContext], object]"


@dataclass(frozen=True, slots=True)
class Conduct:
    """See ``LeaseQueue.task``. None: the default."""

    wait: Wait | None = None
    retry: RetryIf | None = None
    soft_timeout: dt.timedelta | None = None
    on_soft_timeout: OnSoftTimeout | None = None
    executor: Executor = "thread"


PLAIN = Conduct()


def conduct(
    task: str,
    is_async: bool,
    *,
    wait: Wait | None,
    retry: RetryIf | None,
    timeout: dt.timedelta | None,
    soft_timeout: dt.timedelta | None,
    on_soft_timeout: OnSoftTimeout | None,
    executor: Executor,
) -> Conduct:
    """Check the options.

    Raises:
        ConfigurationError: one of them is of the wrong kind; it says what to write.
    """
    if wait is not None or retry is not None:
        from leasequeue.retry import check_retry, check_wait  # tenacity is loaded where it is used

        if wait is not None:
            check_wait(task, wait)
        if retry is not None:
            check_retry(task, retry)
    _check_soft(task, timeout, soft_timeout, on_soft_timeout)
    if executor not in ("thread", "process"):
        raise ConfigurationError(f'{task}: executor is "thread" or "process", not {executor!r}')
    if executor == "process" and is_async:
        raise ConfigurationError(
            f'{task}: executor="process" is for a plain function; an async def runs on the event loop of its worker: '
            f"write def, or leave executor out"
        )
    made = Conduct(wait, retry, soft_timeout, on_soft_timeout, executor)
    return PLAIN if made == PLAIN else made


def _check_soft(task: str, timeout: Any, soft: Any, callback: Any) -> None:
    if soft is None:
        if callback is not None:
            raise ConfigurationError(f"{task}: on_soft_timeout needs a soft_timeout=timedelta(...) to be called at")
        return
    if not isinstance(soft, dt.timedelta) or soft <= dt.timedelta(0):
        raise ConfigurationError(f"{task}: soft_timeout is a positive timedelta or None, not {soft!r}")
    if timeout is not None and soft >= timeout:
        raise ConfigurationError(f"{task}: soft_timeout ({soft}) comes before the timeout ({timeout}), or not at all")
    if callback is None:
        return
    if not callable(callback) or inspect.iscoroutinefunction(callback):
        raise ConfigurationError(
            f"{task}: on_soft_timeout is a plain function of the job's context (it runs in a thread), not {callback!r}"
        )
    try:
        inspect.signature(callback).bind(None)
    except TypeError:
        raise ConfigurationError(
            f"{task}: on_soft_timeout is called with the job's context, its one argument"
        ) from None
    except ValueError:
        return  # a built-in that does not say what it takes
