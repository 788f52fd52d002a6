"""Phases of an iteration, whose times are measured, recorded and displayed."""

__all__ = ["PHASES"]

PHASES = ("rollout", "learn", "sync", "wait", "publish", "record")
"""Names of the phases, in the order of all tables and figures. Their times add up to the time of the iteration. This module imports
nothing, because the commands that only read a run folder do not load PyTorch."""
