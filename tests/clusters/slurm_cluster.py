"""A Slurm cluster of two nodes on this host, with programs and files of its own."""

import getpass
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.live_runs import wait_for

_CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={port}
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=5
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
NodeName=a NodeHostname={host} NodeAddr=127.0.0.1 Port={port_a} CPUs=2 State=UNKNOWN
NodeName=b NodeHostname={host} NodeAddr=127.0.0.1 Port={port_b} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# cred_expire: seconds that a job which was put back into the queue waits at least


class SlurmCluster:
    """A running cluster. Nodes `a` and `b` have two cores each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, *command: str) -> str:
        """Run a command of Slurm and return its output."""
        done = subprocess.run(command, env=os.environ | self.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """Return the state of a job, also of one that has ended."""
        words = self.run("scontrol", "show", "job", job).split()
        return next(word for word in words if word.startswith("JobState=")).removeprefix("JobState=")

    def start(self, name: str, *command: str) -> None:
        """Start one of the programs of the cluster."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, env=os.environ | self.environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def start_node(self, name: str) -> None:
        """Start a node, and wait until it can run jobs."""
        self.start(name, "slurmd", "-D", "-N", name)
        wait_for(lambda: self.run("sinfo", "-h", "-n", name, "-o", "%T") in ("idle", "mixed"), f"node {name}")

    def kill_node(self, name: str) -> None:
        """Kill the node's program and all processes of its jobs, as a loss of power does."""
        self._kill(name)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none reports the end of another one
            for process in self._processes_on(name):
                with suppress(OSError):
                    os.kill(process, number)

    def _processes_on(self, name: str) -> list[int]:
        """Return the processes of the node's jobs, those of Slurm first."""
        tasks, daemons = [], set()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                variables = (process / "environ").read_bytes().split(b"\0")
                if {f"SLURM_CONF={self.environ['SLURM_CONF']}".encode(), f"SLURMD_NODENAME={name}".encode()} <= set(
                    variables
                ):
                    parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                    if b"slurmstepd" in Path("/proc", parent, "cmdline").read_bytes():
                        daemons.add(int(parent))
                    tasks.append(int(process.name))
        return [*daemons, *tasks]

    def stop(self) -> None:
        """End all jobs and programs."""
        with suppress(AssertionError):
            self.run("scancel", "--user", getpass.getuser())
            wait_for(lambda: not self.run("squeue", "-h"), "the end of all jobs", 30)
        for name in list(self._processes):
            self._kill(name)

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def running_cluster() -> Iterator[SlurmCluster]:
    """Start a cluster and yield it. Its folder has a short name, because that of a socket has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
        (folder / "munge.key").chmod(0o600)
        port, port_a, port_b = _free_ports(3)
        text = _CONFIG.format(
            host=socket.gethostname(), user=getpass.getuser(), folder=folder, port=port, port_a=port_a, port_b=port_b
        )
        (folder / "slurm.conf").write_text(text)
        cluster = SlurmCluster(folder)
        try:
            files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
            options = [f"--{option}={folder}/munge.{ending}" for option, ending in files.items()]
            cluster.start("munged", "munged", "--foreground", "--force", *options)
            wait_for((folder / "munge.socket").exists, "munged")
            cluster.start("slurmctld", "slurmctld", "-D", "-c")
            time.sleep(0.5)
            for node in ("a", "b"):
                cluster.start_node(node)
            yield cluster
        finally:
            cluster.stop()
