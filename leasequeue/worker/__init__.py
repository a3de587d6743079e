"""What runs jobs: a supervisor without application code, and worker processes with it.

supervisor ── pipe, shared page ──> process: claimer ─> handlers ─> completer
                                             renewer (leases), sweeper (inside the claimer's pauses), control (beat)
"""
