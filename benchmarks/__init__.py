"""Measurements, each a command: ``python -m benchmarks.drain``, ``python -m benchmarks.latency``; and ``python -m benchmarks``
for leasequeue and its peers in turn.

Every figure that matters is a ratio within one run on one machine; absolute figures are shown for orientation.
"""
