from __future__ import annotations

import json

from leasequeue.steps import StepRow, tree
from tests.cli.conftest import Run
from tests.support.databases import Database
from tests.workflow.hands import ENDS, claim, failure, flow, live, success


def test_a_tree_for_people_and_for_programs_and_a_retry(run: Run, database: Database) -> None:
    id, ids = flow(database, {"a": {}, "b": {"a": "x"}, "c": {"b": "x"}, "d": {"b": "c", "a": "x"}, "e": {"b": "f"}})
    url = ("--url", database.url)
    database.execute(ENDS.succeed, success(claim(database)[ids["a"]]))
    database.execute(ENDS.fail, failure(claim(database)[ids["b"]]))
    done = run("workflows", str(id), *url)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        f"workflow {id}: running (1 cancelled, 1 failed, 2 ready, 1 succeeded)",
        f"a succeeded (job {ids['a']}, t)",
        f"└─ b failed (job {ids['b']}, t): Asked: as asked",
        f"   ├─ c cancelled (job {ids['c']}, t)",
        f"   ├─ d ready (job {ids['d']}, t), goes on whatever became of b, after a, b",
        f"   └─ e ready (job {ids['e']}, t), fires on a failure of b",
    ]
    shown = run("jobs", "show", str(ids["c"]), *url).stdout
    assert f"workflow   {id}, step c" in shown
    assert f"   ├─ c cancelled (job {ids['c']}, t)" in shown
    found = json.loads(run("jobs", "show", str(ids["c"]), "--json", *url).stdout)
    assert found["workflow"] == id
    assert [step["name"] for step in found["steps"]] == ["a", "b", "c", "d", "e"]
    assert found["steps"][3]["after"] == {"a": "x", "b": "c"}
    plain = json.loads(run("workflows", "list", "--json", *url).stdout)
    assert [(row["id"], row["state"]) for row in plain] == [(id, "running")]
    assert run("workflows", *url).stdout.splitlines()[2].split()[:2] == [str(id), "running"]

    refused = run("jobs", "retry", str(ids["b"]), *url)
    assert refused.exit_code == 1
    assert f"leasequeue workflows retry {id} --from b" in refused.stderr
    refused = run("workflows", "retry", str(id), "--from", "a", *url)
    assert refused.exit_code == 1
    assert "has been released" in refused.stderr
    again = run("workflows", "retry", str(id), *url)
    assert [line.split()[1] for line in again.stdout.splitlines()] == ["b", "c"]
    assert live(database) == {"d": "r0", "e": "r0", "b": "r", "c": "b1"}
    assert "asked to stop" in run("workflows", "cancel", str(id), *url).stdout
    assert live(database) == {}
    assert run("workflows", "cancel", "999", *url).exit_code == 1


def test_cancelling_one_job_takes_with_it_what_falls(run: Run, database: Database) -> None:
    _, ids = flow(database, {"a": {}, "b": {"a": "x"}, "c": {"a": "c"}})
    done = run("jobs", "cancel", str(ids["a"]), "--url", database.url)
    assert (done.exit_code, live(database)) == (0, {"c": "r0"})
    assert "nor will what comes after it" in done.stdout


def test_a_wide_fan_is_shown_in_short() -> None:
    root = StepRow("root", 1, "t", "succeeded", 1, {}, None, None)
    parts = [
        StepRow(f"p{i}", 2 + i, "t", "failed" if i == 500 else "succeeded", 1, {"root": "x"}, None, None)
        for i in range(1000)
    ]
    lines = list(tree([root, *parts]))
    assert len(lines) == 14
    assert "p500" in [line.step.name for line in lines if line.step]
    assert lines[-1].more == "and 988 succeeded"
