"""The completer: writes how jobs ended, in batches that form by themselves.

A flush takes whatever ended while the last one was on the wire; a lone job is written at once. Each outcome has its
statement, each statement is fenced. A row that a statement did not return is one of three things, and is called by its
name: *locked* by a transaction of the application (written again a little later), *already written* by an earlier
statement of ours whose answer never came, or *lost*: then this process's end of it is refused, and said.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import psycopg

from leasequeue.db.arrays import numbers, texts
from leasequeue.db.ends import EndStatements
from leasequeue.db.jobs import JobStatements
from leasequeue.errors import DatabaseUnavailable, LeaseLost, OutcomeUnknown
from leasequeue.limit import Limit
from leasequeue.loop import Loop, Outage
from leasequeue.retry import delay_seconds
from leasequeue.worker.hand import Claimed, Ended, Failure, Hand, Outcome
from leasequeue.worker.joins import Joins
from leasequeue.worker.unstarted import give_back

if TYPE_CHECKING:
    from leasequeue.db.connect import Link
    from leasequeue.worker.page import Page
    from leasequeue.worker.progress import ProgressWriter

log = logging.getLogger("leasequeue.job")

BATCH_MAX = 2000
LOCKED_AGAIN_SECONDS = 0.1

_Group = tuple[Outcome, uuid.UUID, str]

_FINAL = (Outcome.SUCCEEDED, Outcome.FAILED_FOR_GOOD, Outcome.CANCELLED, Outcome.EXPIRED)
_JOINED, _JOINED_WHOLE = "joined", "joined, and somebody waits for its failure"
_LINKED = ("linked", _JOINED, _JOINED_WHOLE)

_DATA_CLASSES = ("21", "22", "23", "54")
"""SQLSTATE classes that blame the row: data, constraints, limits of a value. Anything else may pass by itself."""


_REFUSED = "EndRefused"
"""The type of a failure that says so of the end itself."""


class Completer(Loop):
    """One thread that ends leases.

    Args:
        keeps: whether a queue keeps a history.
        ends: how jobs are ended that others may wait for.
        worker: the readable name of this process, written beside failures.
        back: the state in which what was not run goes back: ``r``, or ``q`` where suspects are run.

    ``freed`` is called when a job that was under a limit or part of a workflow has ended: others may be able to run now.
    """

    def __init__(
        self,
        link: Link,
        outage: Outage,
        sql: JobStatements,
        page: Page,
        hand: Hand,
        keeps: Callable[[str], bool],
        worker: str,
        back: str,
        ends: EndStatements,
    ) -> None:
        super().__init__("completer", link, outage)
        self._ends = ends
        self._joins = Joins(ends)
        self._again: set[int] = set()
        self.released: Callable[[], None] = lambda: None
        self._sql = sql
        self._page = page
        self._hand = hand
        self._keeps = keeps
        self._worker = worker
        self._back = back
        self._intake: SimpleQueue[Ended | None] = SimpleQueue()
        self._batch: list[Ended] = []
        self._locked: list[Ended] = []
        self._locked_due = 0.0
        self._unknown_tasks_said: set[str] = set()
        self.finish: Callable[[Ended | None], None] = self._intake.put
        self.freed: Callable[[], None] = lambda: None
        self.progress: ProgressWriter | None = None
        self.completed = 0
        self.failed = 0
        self.refused = 0
        self.put_back: dict[str, int] = {}

    def wake(self) -> None:
        super().wake()
        self._intake.put(None)

    def done(self) -> bool:
        """Ends only when everything that it was told is written."""
        waiting = self._batch or self._locked or self._joins
        return self.stopping and not waiting and self._intake.empty()

    def interrupted(self) -> None:
        self._page.rest("complete_turn")

    def turn(self) -> None:
        if not self._batch:
            self._page.rest("complete_turn")
            self._gather()
            if not self._batch:
                return
        self._page.stamp("complete_turn")
        groups: dict[_Group, list[Ended]] = {}
        # A group that broke off half-way is written again, without those whose end is acknowledged: they would look lost.
        # The late end of one that was given up is refused, and said. What waits for a lock has its own time.
        self._batch = [
            e for e in self._batch if not e.job.acknowledged or (e.job.given_up and e.outcome is Outcome.LOST)
        ]
        if self._joins:
            self._batch = [ended for ended in self._batch if ended.job not in self._joins]
        for ended in self._batch:
            job = ended.job
            kind = "result" if ended.result is not None else ""
            if job.joined and ended.outcome in _FINAL:
                kind = _JOINED_WHOLE if job.whole else _JOINED
            elif ended.outcome is Outcome.SUCCEEDED:
                if job.linked:
                    kind = "linked"
                elif not self._keeps(job.queue):
                    kind = "unkept"
            groups.setdefault((ended.outcome, job.holder, kind), []).append(ended)
        # Those that may wait for a lock come last.
        for group, members in sorted(groups.items(), key=lambda item: item[0][2].startswith(_JOINED)):
            if self.progress is not None and group[0] in (Outcome.FAILED_FOR_GOOD, Outcome.CANCELLED):
                self.progress.write(self.link, [ended.job for ended in members])
            # What was written leaves the batch at once: if the connection breaks later, it is not written again.
            self._write(group, members)
            written = set(map(id, members))
            plain = group[0] is Outcome.WRITTEN or (group[0] is Outcome.SUCCEEDED and group[2] not in _LINKED)
            if not plain and any(e.job.linked for e in members):
                self.freed()
            self._batch = [ended for ended in self._batch if id(ended) not in written]
        self._page.stamp("complete_ok")
        self._page.count("completed", self.completed)
        self._page.count("failed", self.failed)
        self._page.count("refused", self.refused)

    def _gather(self) -> None:
        """Wait for an end, then take all that are there."""
        timeout = max(0.0, self._locked_due - time.monotonic()) if self._locked else 1.0
        timeout = self._joins.wait_seconds(timeout)
        batch = self._batch
        try:
            first = self._intake.get(timeout=timeout)
            if first is not None:
                batch.append(first)
            take = self._intake.get_nowait
            while len(batch) < BATCH_MAX:
                ended = take()
                if ended is not None:
                    batch.append(ended)
        except Empty:
            pass  # all that had ended is taken
        if self._locked and time.monotonic() >= self._locked_due:
            batch.extend(self._locked)
            self._locked = []
        batch.extend(self._joins.due())

    # Writing

    def _write(self, group: _Group, members: list[Ended]) -> None:
        outcome, holder, kind = group
        if outcome is Outcome.LOST:
            # Given up: its attempt was ended by us, as failed, while its handler went on.
            self._refuse([e for e in members if not e.job.given_up], "its lease was lost while it ran")
            self._refuse(
                [e for e in members if e.job.given_up], "its handler went on after its timeout, and has ended now"
            )
            return
        if outcome is Outcome.WRITTEN:
            self._acknowledge(members)
            return
        if outcome is Outcome.COMPLETED_BY_CALLER:
            self._verify(members, holder)
            return
        try:
            if kind.startswith(_JOINED):
                members, returned = self._write_joined(group, members)
            else:
                returned = self._execute(group, members)
        except OutcomeUnknown:
            for ended in members:
                ended.job.unknown = True
            raise
        except DatabaseUnavailable:
            raise
        except psycopg.Error as error:
            blames_data = isinstance(error, psycopg.DataError) or (error.sqlstate or "")[:2] in _DATA_CLASSES
            if not blames_data:
                raise
            self._one_by_one(group, members, error)
            return
        self._settle(members, returned, holder)

    def _write_joined(self, group: _Group, members: list[Ended]) -> tuple[list[Ended], set[int]]:
        """Those that were not set aside, and which of them were ended."""
        deep = group[0] is not Outcome.SUCCEEDED
        try:
            return self._joins.write(self.link, members, lambda some: self._execute(group, some), deep=deep)
        except Exception:
            # It may have been written in parts: what is found ended when it is tried again was ended by us.
            for ended in members:
                ended.job.unknown = True
            members[:] = [ended for ended in members if ended.job not in self._joins]
            raise

    def _execute(self, group: _Group, members: list[Ended]) -> set[int]:
        outcome, holder, kind = group
        unstarted: list[str] = []
        params: dict[str, Any] = {
            "ids": [ended.job.id for ended in members],
            "terms": [ended.job.term for ended in members],
            "me": holder,
        }
        if outcome is Outcome.SUCCEEDED:
            sql = self._sql.complete
            if kind == "result":
                sql = self._sql.complete_with_results
                params["results"] = texts(ended.result for ended in members)
            elif kind == "unkept":
                sql = self._sql.complete_unkept
            elif kind == "linked":
                sql = self._sql.complete_linked
                params["results"] = texts(ended.result for ended in members)
                params["kept"] = numbers(self._keeps(ended.job.queue) for ended in members)
            elif kind.startswith(_JOINED):
                sql = self._ends.succeed if members[0].job.whole else self._ends.succeed_plainly
                params["results"] = texts(ended.result for ended in members)
                params["kept"] = numbers(self._keeps(ended.job.queue) for ended in members)
        elif outcome is Outcome.EXPIRED:
            sql = self._ends.expire_held if kind.startswith(_JOINED) else self._sql.expire
        elif outcome is Outcome.UNSTARTED:
            sql = self._sql.release
            params["back"] = self._back
            unstarted = ["ids", "terms"]
        elif outcome is Outcome.DIVERTED:
            sql = self._sql.divert
            gates = [ended.gate or ("", Limit()) for ended in members]
            params |= {
                "keys_of": [key for key, _ in gates],
                "running": [limit.running for _, limit in gates],
                "rates": [limit.rate for _, limit in gates],
                "seconds": [limit.rate_seconds for _, limit in gates],
            }
            unstarted = ["ids", "terms", "keys_of", "running", "rates", "seconds"]
        elif outcome is Outcome.SNOOZED:
            sql = self._sql.snooze
            params["delays"] = [ended.delay_seconds or 0.0 for ended in members]
            params["untils"] = [ended.until for ended in members]
        elif outcome is Outcome.UNBOUND:
            sql = self._sql.put_back
            params["back"] = self._back
            unstarted = ["ids", "terms"]
            self._say_unknown(members)
        else:
            failures = [ended.failure or Failure("Cancelled", "cancelled on request", None) for ended in members]
            params |= {
                "delays": [_delay_seconds(ended) for ended in members],
                "types": [failure.type for failure in failures],
                "messages": [failure.message for failure in failures],
                "tracebacks": [failure.traceback for failure in failures],
                "worker": self._worker,
            }
            sql = self._sql.retry
            if outcome is not Outcome.FAILED:
                sql = self._ends.fail if kind.startswith(_JOINED) else self._sql.fail
                params["outcome"] = "cancelled" if outcome is Outcome.CANCELLED else "failed"
        if not unstarted:  # those may be sent one by one
            params |= {name: numbers(params[name]) for name in ("ids", "terms")}
        if kind.startswith(_JOINED):
            return self._note_ends(self.link.run(sql, params), members)
        if unstarted:
            return {row[0] for row in give_back(self.link, sql, params, unstarted)}
        return {row[0] for row in self.link.run(sql, params)}

    def _note_ends(self, rows: list[tuple[Any, ...]], members: list[Ended]) -> set[int]:
        """What the statement ended beside its own, and whether something became ready by it."""
        fell = [row for row in rows if row[3] is False]
        for id, task, *_ in fell[:5]:
            log.info("job %s (%s) is cancelled: it came after a job that ended otherwise than hoped for", id, task)
        if len(fell) > 5:
            log.info("and %d more", len(fell) - 5)
        if rows and rows[0][5]:
            self.released()
        whole = {row[0] for row in rows if row[3] is None}
        for ended in members:
            if ended.job.id in whole:
                ended.job.whole = True
                self._again.add(ended.job.id)
        return {row[0] for row in rows if row[3]}

    def _one_by_one(self, group: _Group, members: list[Ended], error: psycopg.Error) -> None:
        """One row's data is refused by the server: the others must not pay for it."""
        if len(members) > 1:
            for ended in members:
                self._write(group, [ended])
            return
        ended, outcome = members[0], group[0]
        # Without the row, which the details quote: it holds what was refused.
        why = (error.diag.message_primary or str(error)).strip()
        refused = f"the database refused the end of this job ({outcome.value}): {why}"
        tried = ended.failure is not None and ended.failure.type == _REFUSED
        if tried or outcome in (Outcome.FAILED, Outcome.FAILED_FOR_GOOD, Outcome.EXPIRED, Outcome.UNSTARTED):
            # There is nothing else to write, or it was not run: its next holder, or the chore, ends it.
            log.error("job %s: %s; its lease will expire", ended.job.id, refused)
            self._forget([ended.job])
            return
        if outcome is Outcome.CANCELLED:
            self._write(group, [ended._replace(failure=Failure(_REFUSED, refused, None))])
            return
        failure = Failure(_REFUSED, refused, None)
        if ended.result is not None:
            failure = Failure("ResultRefused", f"the database refused what the job returned: {error}".strip(), None)
        final = Outcome.FAILED_FOR_GOOD if ended.job.is_last_attempt else Outcome.FAILED
        kind = _JOINED if ended.job.joined and final in _FINAL else ""
        self._write((final, group[1], kind), [Ended(ended.job, final, failure=failure)])

    # What became of it

    def _settle(self, members: list[Ended], returned: set[int], holder: uuid.UUID) -> None:
        if len(returned) == len(members):
            self._acknowledge(members)
            return
        self._acknowledge([ended for ended in members if ended.job.id in returned])
        missing = [ended for ended in members if ended.job.id not in returned]
        held = self._still_held(missing, holder)
        gone = [ended for ended in missing if ended.job.id not in held]
        if gone:
            written = self._written_before(gone)
            self._acknowledge([ended for ended in gone if ended.job.id in written])
            self._refuse([ended for ended in gone if ended.job.id not in written], "its completion came too late")
        # Last: had one of the statements above failed, the whole group would be written again.
        locked = [ended for ended in missing if ended.job.id in held]
        if self._again:
            for ended in locked:
                if ended.job.id in self._again:
                    self._intake.put(ended)  # at once, by the statement for it
            locked = [ended for ended in locked if ended.job.id not in self._again]
            self._again.clear()
        if locked:
            for ended in locked:
                # Or it has got a child since it was claimed, and the plain statements leave it alone.
                ended.job.joined = True
            if not self._locked:
                self._locked_due = time.monotonic() + LOCKED_AGAIN_SECONDS
            self._locked.extend(locked)

    def _verify(self, members: list[Ended], holder: uuid.UUID) -> None:
        """The handler completed in its own transaction. If the row is still there, that transaction rolled back."""
        held = self._still_held(members, holder)
        gone = [ended for ended in members if ended.job.id not in held]
        # A row that is live in other hands was not completed by us: the lease ran out and took that transaction with it.
        live = {
            row[0] for row in self.link.run(self._sql.read_now, {"ids": [e.job.id for e in gone]}) if row[4] is None
        }
        for ended in gone:
            if ended.job.id not in live and ended.failure is not None:
                log.warning(
                    "job %s (%s) is completed, but its handler raised afterwards: %s: %s",
                    ended.job.id, ended.job.task_name, ended.failure.type, ended.failure.message,
                )  # fmt: skip
        self._acknowledge([ended for ended in gone if ended.job.id not in live])
        self._refuse([ended for ended in gone if ended.job.id in live], "its own transaction did not commit")
        back = [ended for ended in members if ended.job.id in held]
        for ended in back:
            failure = ended.failure or Failure(
                "RolledBack",
                "the handler called complete(conn) and returned, but that transaction did not commit",
                None,
            )
            final = Outcome.FAILED_FOR_GOOD if ended.job.is_last_attempt else Outcome.FAILED
            final = ended.otherwise or final
            if self.progress is not None and final is not Outcome.FAILED:
                self.progress.write(self.link, [ended.job])
            kind = _JOINED if ended.job.joined and final in _FINAL else ""
            again = ended._replace(outcome=final, result=None, failure=failure)
            self._write((final, holder, kind), [again])

    def _still_held(self, members: list[Ended], holder: uuid.UUID) -> set[int]:
        params = {"ids": [e.job.id for e in members], "terms": [e.job.term for e in members], "me": holder}
        return {row[0] for row in self.link.run(self._sql.read_held, params)}

    def _written_before(self, members: list[Ended]) -> set[int]:
        """Those whose end stands in the history by an earlier statement of ours that was never answered."""
        unsure = [ended for ended in members if ended.job.unknown]
        if not unsure:
            return set()
        params = {"ids": [e.job.id for e in unsure], "attempts": [e.job.attempt for e in unsure]}
        found = {row[0] for row in self.link.run(self._sql.read_finished, params)}
        # Without a history row there is no telling; the row is gone or in other hands, and nothing of ours is left to do.
        found |= {e.job.id for e in unsure if e.outcome is not Outcome.SUCCEEDED or not self._keeps(e.job.queue)}
        return found

    def _acknowledge(self, members: list[Ended]) -> None:
        for ended in members:
            if ended.outcome in (Outcome.SUCCEEDED, Outcome.COMPLETED_BY_CALLER, Outcome.WRITTEN):
                self.completed += 1
            elif ended.outcome in (Outcome.FAILED, Outcome.FAILED_FOR_GOOD):
                self.failed += 1
                self._say_failed(ended)
            elif ended.outcome is Outcome.EXPIRED:
                log.warning(
                    "job %s (%s) was claimed too late to start in time: expired", ended.job.id, ended.job.task_name
                )
            elif ended.outcome in (Outcome.SNOOZED, Outcome.CANCELLED):
                reason = ended.failure.message if ended.failure is not None else "on request"
                log.info("job %s (%s) %s: %s", ended.job.id, ended.job.task_name, ended.outcome.value, reason)
        self._forget([ended.job for ended in members])

    def _refuse(self, members: list[Ended], why: str) -> None:
        """The row is in other hands, or ended by them: what this process did of it does not count."""
        for ended in members:
            job = ended.job
            now = self.link.run(self._sql.read_now, {"ids": [job.id]})
            lost = LeaseLost(f"job {job.id} ({job.task_name})", job.term, f"{why}; {_found(now)}")
            log.error("refused: %s", lost)
            self.link.run(
                self._sql.note_refusal,
                {
                    "id": job.id, "attempt": job.attempt, "queue": job.queue, "task": job.task_name,
                    "type": "LeaseLost", "message": str(lost), "worker": self._worker, "term": job.term,
                },
            )  # fmt: skip
            self.refused += 1
            self._forget([job])

    def _forget(self, jobs: list[Claimed]) -> None:
        self._hand.drop(jobs)
        for job in jobs:
            job.acknowledged = True
            if job.entry:
                self._page.leave(job.entry)
                job.entry = 0

    # What is said

    def _say_unknown(self, members: list[Ended]) -> None:
        for ended in members:
            name = ended.job.task_name
            self.put_back[name] = self.put_back.get(name, 0) + 1
            if name in self._unknown_tasks_said:
                continue
            self._unknown_tasks_said.add(name)
            known = "its arguments do not bind" if ended.job.task is not None else "it is not registered"
            log.warning(
                "jobs of task %r are put back for another release: %s in this process (first: job %s)",
                name, known, ended.job.id,
            )  # fmt: skip

    def _say_failed(self, ended: Ended) -> None:
        job, failure = ended.job, ended.failure
        what = f"{failure.type}: {failure.message}" if failure else "no reason was given"
        final = "failed for good" if ended.outcome is Outcome.FAILED_FOR_GOOD else "failed, will be tried again"
        log.warning(
            "job %s (%s) attempt %s %s: %s", job.id, job.task_name, job.attempt, final, what,
            extra={"job": job.id, "task": job.task_name, "attempt": job.attempt, "holder": str(job.holder)},
        )  # fmt: skip


def _delay_seconds(ended: Ended) -> float:
    if ended.delay_seconds is not None:
        return ended.delay_seconds
    return delay_seconds(max(1, ended.job.attempt - ended.job.abandoned))


def _found(rows: list[tuple[Any, ...]]) -> str:
    if not rows:
        return "the row is gone"
    _, state, holder, term, outcome = rows[0]
    if outcome is not None:
        return f"it has finished as {outcome}"
    if state == "l":
        return f"holder {holder} has it in term {term}"
    return f"it is in state {state!r} after term {term}"
