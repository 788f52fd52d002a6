"""A policy as one file that runs without lockstep."""
