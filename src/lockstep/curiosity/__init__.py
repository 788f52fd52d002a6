"""Rewards that an agent gives itself for what is new to it."""
