"""Program: load a run and its hostile copies under an audit hook. It prints what was imported or executed, and each error's first words.

python -m tests.hostile.audit RUN HOSTILE…
"""

import sys
from pathlib import Path

from lockstep.experiment.execute import check_checkpoint, open_run
from lockstep.experiment.policy import load_policy
from lockstep.run.folder import RunFolder
from lockstep.run.manifest import verify

WATCHED = (
    *("import", "exec", "compile", "os.exec", "os.fork", "os.posix_spawn", "os.system", "subprocess.Popen"),
    *("ctypes.dlopen", "pickle.find_class", "marshal.loads", "socket.connect", "code.__new__", "function.__new__"),
)
seen: list[str] = []
watching = False


def watch(event: str, arguments: tuple[object, ...]) -> None:
    """Record an event."""
    if watching and event in WATCHED:
        seen.append(f"{event} {str(arguments)[:200]}")


def load(path: Path) -> str:
    """Load config, metrics and policy as `eval`, `resume` and `lockstep.load` do. Return the error, or nothing."""
    try:
        folder, config = open_run(path)
        folder.metrics()
        load_policy(RunFolder(path))
        newest = folder.checkpoints()[-1]
        check_checkpoint(folder, config, newest, verify(folder.checkpoint(newest)))
    except ValueError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    run, *hostile = map(Path, sys.argv[1:])
    assert load(run) == ""  # imports what loading needs
    load(run / "none")
    sys.addaudithook(watch)
    watching = True
    problems = [load(path) for path in (run, *hostile)]
    watching = False
    print(*seen, sep="\n")
    print(f"refused {sum(map(bool, problems))} of {len(hostile)}")
