"""From recorded figures to a report: medians, ratios, rates, and what stands where there is no figure."""

from __future__ import annotations

import json

import pytest

from benchmarks import compare, peers
from benchmarks.compare.record import Record, medians, percentile, ratios, steady
from benchmarks.compare.report import Run, markdown
from benchmarks.compare.workload import Column

RECORDS = [
    Record("drain", "leasequeue", 1, {"1": 100.0, "2": 150.0}),
    Record("drain", "graphile-worker", 1, {"1": 40.0, "2": 90.0}),
    Record("drain", "oban", 1, reasons=["it needs Python 3.12 or newer"]),
    Record("drain", "leasequeue", 2, {"1": 300.0, "2": 150.0}),
    Record("drain", "graphile-worker", 2, {"1": 50.0}, reasons=["its process ended with status 1"]),
    Record("drain", "oban", 2, reasons=["it needs Python 3.12 or newer"]),
    Record("drain", "leasequeue", 3, {"1": 200.0, "2": 150.0}),
    Record("drain", "graphile-worker", 3, {"1": 60.0, "2": 60.0}),
]


@pytest.fixture
def run() -> Run:
    who: dict[str, tuple[str, str]] = dict.fromkeys(("leasequeue", "graphile-worker", "oban"), ("1.2", "at its best"))
    machine = {"cores": "2", "CPU": "a processor"}
    return Run(
        "2026-01-31", "python -m benchmarks drain", machine, "leasequeue", 3, who, {"pgqueuer": "no pip"}, RECORDS
    )


def test_medians_are_over_the_rounds_that_have_the_figure() -> None:
    assert medians(RECORDS, "drain", "1") == {"leasequeue": 200.0, "graphile-worker": 50.0}
    assert medians(RECORDS, "drain", "2") == {"leasequeue": 150.0, "graphile-worker": 75.0}
    assert medians(RECORDS, "pickup", "p50") == {}


def test_ratios_are_to_the_reference_of_the_same_run() -> None:
    assert ratios({"leasequeue": 200.0, "oban": 50.0}, "leasequeue") == {"leasequeue": 1.0, "oban": 0.25}
    assert ratios({"oban": 50.0}, "leasequeue") == {}


def test_the_report_has_figures_ratios_and_reasons(run: Run) -> None:
    lines = markdown(run, compare.WORKLOADS).splitlines()
    assert "| leasequeue | 200 | 150 |" in lines
    assert "| graphile-worker | 50 (0.25) | 75 (0.50) |" in lines
    assert "| oban | – | – |" in lines, "what was not measured is no zero"
    assert lines.count("- oban: it needs Python 3.12 or newer") == 1, "once, however many rounds"
    assert "- graphile-worker: its process ended with status 1" in lines
    assert "Not measured: pgqueuer: no pip." in lines
    assert "| oban | 1.2 | at its best |" in lines
    assert "- CPU: a processor" in lines
    assert [line for line in lines if line.startswith("## ")] == [
        "## Drain of a backlog, jobs/s",
        "## Versions and settings",
    ]


def test_a_run_goes_through_json_and_back(run: Run) -> None:
    assert Run.from_json(json.loads(json.dumps(run.as_json()))) == run


def test_a_figure_that_is_not_compared_has_no_ratio() -> None:
    from benchmarks.compare.report import cell

    found = {"leasequeue": 2.0, "oban": 1.5}
    assert cell(found, "oban", Column("x", "x", digits=2), "leasequeue") == "1.50 (0.75)"
    assert cell(found, "oban", Column("x", "x", digits=1, compared=False), "leasequeue") == "1.5"
    assert cell({"oban": 1234.0}, "oban", Column("x", "x"), "leasequeue") == "1,234"


def test_a_rate_is_of_the_time_between_two_looks_in_the_midst() -> None:
    # Nothing for two seconds, then 100 a second, and a last look that comes late.
    samples = [(0.0, 1000), (2.0, 1000), (3.0, 900), (5.0, 700), (11.0, 100), (15.0, 0)]
    assert steady(samples, 1000) == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("samples", "rate"),
    [
        ([(0.0, 1000), (1.0, 500), (2.0, 0)], 500.0),
        ([(0.0, 1000), (1.0, 1000), (2.0, 0)], 1000.0),
        ([(0.0, 1000), (1.0, 500), (2.0, 500), (3.0, 0)], 250.0),
    ],
)
def test_a_short_drain_is_counted_to_its_end(samples: list[tuple[float, int]], rate: float) -> None:
    assert steady(samples, 1000) == rate


def test_one_look_tells_no_rate() -> None:
    with pytest.raises(ValueError, match="1 looks at 1000 jobs"):
        steady([(0.0, 0)], 1000)


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(200, 0, -1)]
    assert (percentile(values, 99), percentile(values, 100), percentile(values, 0)) == (198.0, 200.0, 1.0)
    assert percentile([3.0], 99) == 3.0


def test_the_registry_knows_every_peer_once_and_always_measures_the_reference() -> None:
    names = [peer.name for peer in peers.PEERS]
    assert len(set(names)) == len(names)
    assert {"leasequeue", "graphile-worker", "pg-boss", "pgqueuer", "procrastinate", "chancy", "oban"} <= set(names)
    assert [peer.name for peer in peers.choose(["oban"])] == ["leasequeue", "oban"]
    assert peers.choose([]) == list(peers.PEERS)
    with pytest.raises(ValueError, match="no peer is named celery"):
        peers.choose(["celery"])


def test_the_registry_of_workloads() -> None:
    names = [workload.name for workload in compare.WORKLOADS]
    assert len(set(names)) == len(names)
    assert [workload.name for workload in compare.choose(["pickup", "drain"])] == ["drain", "pickup"]
    with pytest.raises(ValueError, match="no workload is named nap"):
        compare.choose(["nap"])
