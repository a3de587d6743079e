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


def mypy(path: Path) -> list[tuple[int, str]]:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    name = re.escape(str(path.relative_to(ROOT)))
    assert done.returncode in (0, 1), done.stderr
    return [(int(line), text) for line, text in re.findall(rf"{name}:(\d+): error: (.*)", done.stdout)]


def pyright(path: Path) -> list[tuple[int, str]]:
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(path.parent)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [
        (each["range"]["start"]["line"] + 1, each["message"])
        for each in found
        if each["severity"] == "error" and Path(each["file"]) == path
    ]


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_what_is_right_passes_and_every_planted_error_is_found(
    checker: Callable[[Path], list[tuple[int, str]]],
) -> None:
    assert checker(RIGHT) == []
    expected, found = planted(), checker(WRONG)
    assert {line for line, _ in found} == set(expected)
    for line, word in expected.items():
        assert any(word in text for number, text in found if number == line), (line, word, found)
