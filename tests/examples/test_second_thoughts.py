"""``examples/second_thoughts``: what docs/retries-timeouts-cancellation.md says that it prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.databases import Database

PAGE = Path(__file__).parents[2] / "docs" / "retries-timeouts-cancellation.md"


@pytest.mark.direct_only  # it is about what is printed
def test_it_prints_what_its_page_says(database: Database) -> None:
    command = [sys.executable, "-m", "examples.second_thoughts", database.url]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=PAGE.parents[1])
    lines = ran.stdout.splitlines()
    said = {line for line in lines if line.startswith("report ")}
    assert said == {"report takes long", "report cleans up"}
    shown = PAGE.read_text().split("$ python -m examples.second_thoughts\n")[1].split("```")[0].splitlines()
    assert [line for line in lines if line not in said] == shown, ran.stderr
