"""Log lines of a worker: for people on a terminal, or one JSON object a line."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import sys

_FIELDS = ("job", "task", "attempt", "holder")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, pid, and what a job's line carries."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": os.getpid(),
        }
        for field in _FIELDS:
            if field in record.__dict__:
                line[field] = record.__dict__[field]
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(log_format: str, log_level: str) -> None:
    """Set up the ``leasequeue`` loggers on stderr; an application that configured logging itself keeps its own.

    Args:
        log_format: ``text`` or ``json``.
        log_level: a name of the logging module, in any case.
    """
    logger = logging.getLogger("leasequeue")
    logger.setLevel(log_level.upper())
    if logger.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
