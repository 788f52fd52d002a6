"""Sweeps: many runs of one experiment, over seeds, over grids of values, or as a search over ranges of values."""
