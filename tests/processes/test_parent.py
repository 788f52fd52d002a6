"""Tests of processes that end with their parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.live_runs import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel call is Linux's")

CHILD = "import os, time; from lockstep.processes.parent import die_with_parent\ndie_with_parent({parent})\nprint(os.getpid(), flush=True); time.sleep(60)"
PARENT = f"import os, subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {CHILD!r}.format(parent=os.getpid())]); time.sleep(60)"


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_ends_with_its_parent(number: signal.Signals, environ: dict[str, str]) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert alive(child)
            parent.send_signal(number)
            wait_for(lambda: not alive(child), "the child has ended", 10)
        finally:
            if alive(child):
                os.kill(child, signal.SIGKILL)


def test_a_child_whose_parent_has_already_ended_exits(environ: dict[str, str]) -> None:
    ended = subprocess.run([sys.executable, "-c", CHILD.format(parent=1)], env=environ, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (1, b"")
