"""Measurements, each a command: ``python -m benchmarks.drain``, ``python -m benchmarks.latency``.

Every figure that matters is a ratio within one run on one machine; absolute figures are shown for orientation.
"""
