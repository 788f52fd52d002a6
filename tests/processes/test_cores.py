"""Cores that a process may run on."""

import os
import subprocess
import sys

from lockstep.processes.cores import core_numbers, usable_cores


def test_a_process_counts_the_cores_that_it_is_bound_to() -> None:
    assert usable_cores() == len(core_numbers()) <= (os.cpu_count() or 1)
    last = core_numbers()[-1]
    program = f"import os; os.sched_setaffinity(0, {{{last}}}); from lockstep.processes.cores import *; print(core_numbers(), usable_cores())"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout == f"[{last}] 1\n"
