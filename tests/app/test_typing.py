"""Both type checkers see the arguments and the result of a task through the decorator."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RIGHT = ROOT / "tests" / "typing" / "right.py"
WRONG = ROOT / "tests" / "typing" / "wrong.py"


def planted() -> set[int]:
    return {number for number, line in enumerate(WRONG.read_text().splitlines(), 1) if line.endswith("# wrong")}


def mypy(path: Path) -> set[int]:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    name = re.escape(str(path.relative_to(ROOT)))
    assert done.returncode in (0, 1), done.stderr
    return {int(line) for line in re.findall(rf"{name}:(\d+): error", done.stdout)}


def pyright(path: Path) -> set[int]:
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(path.parent)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {
        each["range"]["start"]["line"] + 1
        for each in found
        if each["severity"] == "error" and Path(each["file"]) == path
    }


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_what_is_right_passes_and_every_planted_error_is_found(checker: object) -> None:
    assert callable(checker)
    assert checker(RIGHT) == set()
    assert checker(WRONG) == planted()
