"""Whether a failed job is tried again, and how long it waits. Pure.

The vocabulary is tenacity's: ``wait`` strategies, ``retry`` strategies, and callables like them. Its ``stop`` strategies have
no place here: how often is ``max_attempts``, which a job's row knows. The default is exponential with full jitter
(``wait_random_exponential``): jobs that failed together, because a service they all need was down, do not come back together.

What a strategy does wrong, the queue must survive: one that raises, or answers nonsense, is said and the default holds.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from tenacity import BaseRetrying, RetryCallState, Retrying, wait_random_exponential
from tenacity.retry import retry_all, retry_any, retry_base, retry_if_not_result, retry_if_result
from tenacity.stop import stop_base
from tenacity.wait import wait_base, wait_chain, wait_combine

from leasequeue.errors import ConfigurationError
from leasequeue.raising import YEAR_SECONDS

log = logging.getLogger("leasequeue.job")

Wait: TypeAlias = "wait_base | Callable[[RetryCallState], float | int]"
RetryIf: TypeAlias = "retry_base | Callable[[RetryCallState], bool]"

DEFAULT_WAIT: wait_base = wait_random_exponential(multiplier=2, max=3600, min=1)


class _Attempts:
    """The one thing that the default strategy asks of its state."""

    def __init__(self, attempt_number: int) -> None:
        self.attempt_number = attempt_number


def delay_seconds(attempt: int) -> float:
    """Seconds until the next attempt, by the default.

    Args:
        attempt: the number of the attempt that failed, from 1.
    """
    return float(DEFAULT_WAIT(cast(RetryCallState, _Attempts(attempt))))


def state(
    attempt: int, error: BaseException, seconds: float, function: Callable[..., Any] | None = None
) -> RetryCallState:
    """What a strategy is asked with: tenacity's own state, as after a failed call.

    Args:
        attempt: the number of the attempt that failed, from 1.
        error: what it raised.
        seconds: how long that attempt took: ``seconds_since_start``. The attempts before it are not known here.
    """
    made = RetryCallState(Retrying(), function, (), {})
    made.attempt_number = attempt
    made.set_exception((type(error), error, error.__traceback__))
    assert made.outcome_timestamp is not None
    made.start_time = made.outcome_timestamp - seconds
    return made


def wants_retry(task: str, retry: RetryIf, asked: RetryCallState) -> bool:
    """Whether the strategy wants another attempt; True, the default, where it cannot say."""
    try:
        return bool(retry(asked))
    except Exception as error:  # it is the application's own code
        log.error("task %s: its retry strategy failed, so the job is tried again", task, exc_info=error)
        return True


def wait_seconds(task: str, wait: Wait, asked: RetryCallState) -> float:
    """How long the strategy wants to wait, a year at most; the default where it gives no such number."""
    try:
        found: Any = wait(asked)
    except Exception as error:  # as above
        log.error("task %s: its wait strategy failed, so the default wait holds", task, exc_info=error)
        return delay_seconds(asked.attempt_number)
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found) or found < 0:
        log.error("task %s: its wait strategy gave %r, no seconds to wait; the default wait holds", task, found)
        return delay_seconds(asked.attempt_number)
    return min(float(found), YEAR_SECONDS)


# What a decorator is given


def check_wait(task: str, wait: object) -> None:
    """Refuse what is no wait strategy, also inside of a sum or a chain: tenacity adds up anything that can be called.

    Raises:
        ConfigurationError: it says what to write.
    """
    _no_foreigner(task, "wait", wait)
    if isinstance(wait, retry_base):
        raise ConfigurationError(
            f"{task}: {_name(wait)} says whether to try again, not how long to wait: write retry={_name(wait)}(...)"
        )
    members: Any = ()
    if isinstance(wait, wait_combine):
        members = wait.wait_funcs
    elif isinstance(wait, wait_chain):
        members = wait.strategies
    for member in members:
        check_wait(task, member)
    if not isinstance(wait, wait_base):
        _is_called_with_a_state(task, "wait", wait, "wait_fixed(5)")


def check_retry(task: str, retry: object) -> None:
    """Refuse what is no retry strategy, or asks for a result: a job that returned one has succeeded.

    Raises:
        ConfigurationError: it says what to write.
    """
    if isinstance(retry, type) and issubclass(retry, BaseException):
        raise ConfigurationError(f"{task}: write retry=retry_if_exception_type({retry.__name__})")
    if (
        isinstance(retry, tuple)
        and retry
        and all(isinstance(each, type) and issubclass(each, BaseException) for each in retry)
    ):
        raise ConfigurationError(
            f"{task}: write retry=retry_if_exception_type(({', '.join(each.__name__ for each in retry)}))"
        )
    if isinstance(retry, bool):
        raise ConfigurationError(f"{task}: retry is a strategy, not {retry}: max_attempts=1 tries once")
    _no_foreigner(task, "retry", retry)
    if isinstance(retry, wait_base):
        raise ConfigurationError(
            f"{task}: {_name(retry)} says how long to wait, not whether to try again: write wait={_name(retry)}(...)"
        )
    if isinstance(retry, retry_if_result | retry_if_not_result):
        raise ConfigurationError(
            f"{task}: {_name(retry)} looks at results, and a job that returned one has succeeded: "
            f"raise leasequeue.Retry() in the function instead"
        )
    if isinstance(retry, retry_any | retry_all):
        for member in retry.retries:
            check_retry(task, member)
    if not isinstance(retry, retry_base):
        _is_called_with_a_state(task, "retry", retry, "retry_if_exception_type(OSError)")


def _no_foreigner(task: str, option: str, given: object) -> None:
    if isinstance(given, stop_base):
        number = getattr(given, "max_attempt_number", 8)
        raise ConfigurationError(
            f"{task}: {_name(given)} is no part of {option}: how often a job is tried is max_attempts={number}, "
            f"beside {option}=..."
        )
    if isinstance(given, BaseRetrying):
        raise ConfigurationError(
            f"{task}: {option} takes a strategy, not a whole {_name(given)}, which would repeat within one attempt: "
            f"write wait=..., retry=... and max_attempts=..."
        )
    if isinstance(given, type):
        raise ConfigurationError(f"{task}: {option} takes a strategy, not its class: write {given.__name__}(...)")
    if inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(type(given).__dict__.get("__call__")):
        raise ConfigurationError(f"{task}: {option} takes a plain function or strategy; {_name(given)} is an async one")


def _is_called_with_a_state(task: str, option: str, given: object, example: str) -> None:
    if not callable(given):
        raise ConfigurationError(
            f"{task}: {option} takes a strategy of tenacity, e.g. {option}={example}, not {given!r}"
        )
    try:
        inspect.signature(given).bind(None)
    except TypeError:
        raise ConfigurationError(
            f"{task}: {option} is called with one argument, tenacity's RetryCallState; {_name(given)} cannot be"
        ) from None
    except ValueError:
        return  # a built-in that does not say what it takes


def _name(given: object) -> str:
    return getattr(given, "__name__", type(given).__name__)
