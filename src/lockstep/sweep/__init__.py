"""Many runs of one experiment: over seeds, over grids of values, and searches in ranges."""
