"""tenacity's strategies as options of a task: what is refused, and what a strategy may do wrong."""

from __future__ import annotations

import datetime as dt
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_message,
    retry_if_exception_type,
    retry_if_result,
    retry_never,
    stop_after_attempt,
    wait_chain,
    wait_fixed,
    wait_none,
    wait_random,
)
from tenacity.wait import wait_exception

from leasequeue import ConfigurationError, Fail, LeaseQueue, Retry, Snooze
from leasequeue.raising import YEAR_SECONDS
from leasequeue.retry import state
from leasequeue.task import Task
from leasequeue.worker.attempt import Tries, raised
from leasequeue.worker.hand import Outcome


def task(**options: Any) -> Task[..., Any]:
    @LeaseQueue().task(name="t", **options)
    def t() -> None:
        """Nothing."""

    return t


async def _async(_: RetryCallState) -> float:
    return 1.0


# As a program without a type checker has them.
FIXED: Any = wait_fixed(1)
NONE: Any = wait_none()

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"wait": FIXED + stop_after_attempt(3)}, r"stop_after_attempt is no part of wait: .* max_attempts=3"),
    ({"wait": stop_after_attempt(3) + FIXED}, "max_attempts=3"),
    ({"wait": FIXED + (NONE + stop_after_attempt(4))}, "max_attempts=4"),
    ({"wait": wait_chain(wait_fixed(1), NONE + stop_after_attempt(5))}, "max_attempts=5"),
    ({"wait": stop_after_attempt(6)}, "max_attempts=6"),
    ({"wait": FIXED + retry_never}, "says whether to try again, not how long to wait"),
    ({"wait": retry_if_exception_type(OSError)}, "write retry=retry_if_exception_type"),
    ({"wait": wait_fixed}, r"not its class: write wait_fixed\(\.\.\.\)"),
    ({"wait": FIXED + wait_random}, r"write wait_random\(\.\.\.\)"),
    ({"wait": 5}, r"e\.g\. wait=wait_fixed\(5\), not 5"),
    ({"wait": dt.timedelta(seconds=5)}, r"wait=wait_fixed\(5\)"),
    ({"wait": lambda: 1.0}, "called with one argument"),
    ({"wait": _async}, "_async is an async one"),
    ({"wait": Retrying()}, "not a whole Retrying"),
    ({"retry": wait_fixed(1)}, r"says how long to wait, not whether to try again: write wait=wait_fixed"),
    ({"retry": stop_after_attempt(3)}, "max_attempts=3"),
    ({"retry": retry_if_exception_type(OSError) | stop_after_attempt(3)}, "max_attempts=3"),
    ({"retry": OSError}, r"retry=retry_if_exception_type\(OSError\)"),
    ({"retry": (OSError, ValueError)}, r"retry_if_exception_type\(\(OSError, ValueError\)\)"),
    ({"retry": retry_if_exception_type}, "not its class"),
    ({"retry": retry_if_result(bool)}, r"looks at results, and .* raise leasequeue\.Retry\(\)"),
    ({"retry": retry_if_exception_type(OSError) & retry_if_result(bool)}, "looks at results"),
    ({"retry": True}, "retry is a strategy, not True"),
    ({"retry": "always"}, r"retry=retry_if_exception_type\(OSError\), not 'always'"),
    ({"soft_timeout": 5}, "soft_timeout is a positive timedelta"),
    ({"soft_timeout": dt.timedelta(5), "timeout": dt.timedelta(5)}, "comes before the timeout"),
    ({"on_soft_timeout": print}, "needs a soft_timeout"),
    ({"soft_timeout": dt.timedelta(5), "on_soft_timeout": _async}, "plain function of the job's context"),
    ({"soft_timeout": dt.timedelta(5), "on_soft_timeout": lambda: 0}, "its one argument"),
    ({"executor": "fork"}, '"thread" or "process"'),
]


@pytest.mark.parametrize(("options", "words"), WRONG)
def test_the_wrong_kind_is_refused_with_what_to_write(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        task(**options)
    assert str(caught.value).startswith("t: ")


def test_a_process_takes_no_coroutine() -> None:
    with pytest.raises(ConfigurationError, match="is for a plain function"):

        @LeaseQueue().task(executor="process")
        async def t() -> None:
            """Nothing."""


def test_right_ones() -> None:
    task(wait=wait_fixed(1) + wait_random(0, 2), retry=retry_if_exception_type(OSError) | (lambda state: True))
    task(wait=wait_chain(wait_none(), wait_fixed(2) + wait_none()), retry=retry_never, max_attempts=3)
    task(wait=sum([wait_fixed(1), wait_fixed(2)]), executor="process", soft_timeout=dt.timedelta(seconds=1))


def end(error: BaseException, attempt: int = 1, most: int = 8, **options: Any) -> tuple[Outcome, float | None]:
    verdict = raised(task(**options), Tries(attempt, most), error, 2.5)
    return verdict.outcome, verdict.delay_seconds


def test_strategies_decide() -> None:
    assert end(OSError(), wait=wait_fixed(7) + wait_fixed(2)) == (Outcome.FAILED, 9.0)
    assert end(OSError(), 3, wait=wait_chain(wait_none(), wait_fixed(2), wait_fixed(5))) == (Outcome.FAILED, 5.0)
    assert end(OSError("42"), wait=wait_exception(lambda e: float(str(e)))) == (Outcome.FAILED, 42.0)
    assert end(KeyError(), retry=retry_if_exception_type(OSError)) == (Outcome.FAILED_FOR_GOOD, None)
    assert end(OSError("busy"), retry=retry_if_exception_message("busy")) == (Outcome.FAILED, None)
    assert end(OSError("gone"), retry=retry_if_exception_message("busy")) == (Outcome.FAILED_FOR_GOOD, None)
    assert end(OSError(), 8, wait=wait_fixed(7)) == (Outcome.FAILED_FOR_GOOD, None)
    # What a handler says goes before them; the number of attempts before all.
    assert end(Retry(3), wait=wait_fixed(7), retry=retry_never) == (Outcome.FAILED, 3.0)
    assert end(Retry(), wait=wait_fixed(7), retry=retry_never) == (Outcome.FAILED, 7.0)
    assert end(Retry(3), 8) == (Outcome.FAILED_FOR_GOOD, None)
    assert end(Fail("no")) == (Outcome.FAILED_FOR_GOOD, None)
    assert end(Snooze(4), 8, retry=retry_never) == (Outcome.SNOOZED, 4.0)


def test_what_a_strategy_sees() -> None:
    error = OSError("x")
    seen = state(3, error, 2.5, print)
    assert (seen.attempt_number, seen.fn) == (3, print)
    assert seen.outcome is not None
    assert seen.outcome.exception() is error
    assert seen.seconds_since_start == pytest.approx(2.5)


def _raises(_: RetryCallState) -> float:
    raise LookupError("a strategy's own fault")


@pytest.mark.parametrize(
    "wait",
    [_raises, lambda _: -1.0, lambda _: math.nan, lambda _: math.inf, lambda _: None, lambda _: "5", lambda _: True],
)
def test_nonsense_is_said_and_the_default_holds(wait: Callable[[Any], Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "leasequeue.job"):
        outcome, delay = end(OSError(), 2, wait=wait)
    assert outcome is Outcome.FAILED
    assert delay is not None
    assert 1.0 <= delay <= 4.0  # the default's, after the second attempt
    assert "task t: its wait strategy" in caplog.text


def test_a_retry_strategy_that_fails_tries_again(caplog: pytest.LogCaptureFixture) -> None:
    assert end(OSError(), retry=_raises) == (Outcome.FAILED, None)
    assert "its retry strategy failed" in caplog.text


def test_a_wait_is_a_year_at_most() -> None:
    assert end(OSError(), wait=wait_fixed(1e12)) == (Outcome.FAILED, YEAR_SECONDS)
    for wrong in (-1, math.nan, math.inf, "5", True, dt.timedelta(days=400)):
        with pytest.raises(ConfigurationError):
            Retry(wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError):
            Snooze(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="timezone-aware"):
        Snooze(dt.datetime(2030, 1, 1))  # noqa: DTZ001  # the fault that is tested
    with pytest.raises(ConfigurationError, match="a year at most"):
        Snooze(dt.datetime.now(dt.UTC) + dt.timedelta(days=500))
