"""Both type checkers see the arguments and the result of a task through the decorator."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RIGHT = ROOT / "tests" / "typing" / "right.py"
WRONG = ROOT / "tests" / "typing" / "wrong.py"


def planted() -> dict[int, str]:
    marked = (line.partition("  # wrong: ") for line in WRONG.read_text().splitlines())
    return {number: word for number, (_, _, word) in enumerate(marked, 1) if word}


Found = dict[Path, list[tuple[int, str]]]
"""The errors in each of the two files, which are checked in one run: most of it is spent on what they import."""


def mypy() -> Found:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(RIGHT), str(WRONG)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    names = {path: re.escape(str(path.relative_to(ROOT))) for path in (RIGHT, WRONG)}
    return {
        path: [(int(line), text) for line, text in re.findall(rf"{name}:(\d+): error: (.*)", done.stdout)]
        for path, name in names.items()
    }


def pyright() -> Found:
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(WRONG.parent)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [each for each in json.loads(done.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    return {
        path: [(each["range"]["start"]["line"] + 1, each["message"]) for each in found if Path(each["file"]) == path]
        for path in (RIGHT, WRONG)
    }


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_what_is_right_passes_and_every_planted_error_is_found(
    checker: Callable[[], Found],
) -> None:
    errors = checker()
    assert errors[RIGHT] == []
    expected, found = planted(), errors[WRONG]
    assert {line for line, _ in found} == set(expected)
    for line, word in expected.items():
        assert any(word in text for number, text in found if number == line), (line, word, found)
