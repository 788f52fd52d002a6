"""Runs on clusters: submission of a run, as a job, to the program that schedules its ranks."""
