"""Phases of an iteration, whose times are measured, recorded and displayed, and the stages of a rank."""

__all__ = ["PHASES", "STAGES"]

PHASES = ("rollout", "learn", "sync", "wait", "publish", "record")
"""Names of the phases, in the order of all tables and figures. Their times add up to the time of the iteration. This module imports
nothing, because the commands that only read a run folder do not load PyTorch."""
STAGES = ("start", "compile", *PHASES, "checkpoint", "hook", "end")
"""Stages of a rank from its start to its end, as its heartbeat shows them (`processes/heartbeat.py`)."""
