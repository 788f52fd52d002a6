"""Distributed PPO that gives the same policy, bit for bit, however many processes carry it."""

__version__ = "0.1.0"
