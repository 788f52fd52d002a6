"""Check that the commands and programs of every page run without errors in an empty folder."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hub.fake_hub import TOKEN, serving
from tests.pages.blocks import DOCUMENTS, ROOT, commands
from tests.warm import Warm

from lockstep.config.decode import known_fields, known_sections

PREPARED = {
    "README.md": [
        f"lockstep train --env LunarLander-v3 --seed {seed} --name {name}"
        for seed, name in ((2, "second"), (3, "third"))
    ],
    "docs/sweep.md": ["lockstep train cartpole --ranks 1 --out runs/cartpole-sweep/runs"],
    "docs/reports.md": [
        "lockstep train --name first",
        "lockstep train --name second",
        "lockstep sweep --over run.seed=1 --out runs/cartpole-sweep --total-steps 512 --rollout.steps 32",
    ],
    "docs/monitoring.md": ["lockstep train --name first", "lockstep train --out experiments"],
    "docs/troubleshooting.md": ["lockstep train --name first"],
    "docs/export.md": ["lockstep train --name first"],
    "docs/hub.md": ["lockstep train --name first"],
    "docs/plots.md": [
        "lockstep train --name first",
        *(f"lockstep train cartpole --seed {seed}" for seed in (1, 2, 3)),
        *(f"lockstep train --name {name}" for name in ("narrow-1", "narrow-2", "wide-1", "wide-2", "alone", "workers")),
        "lockstep train mountaincar-continuous-icm",
    ],
}
"""Commands whose runs a page assumes to exist."""
LAUNCHER = re.compile(r"^(torchrun|mpirun|fabric) (?!.*(?:--nnodes|--host)).*")
NOT_RUN = re.compile(
    r"(make|docker|pip install|export|apt-get|srun|mpirun --host|torchrun --nnodes|python -m venv|sb3/bin/pip|python benchmarks/learning/\w+\.py) "
)
"""Commands that no test of a page runs: they install packages, set variables of a shell, take hours, or need Docker, Slurm or two machines. tests/agreement/test_hosts.py
simulates two nodes, and tests/benchmarks/test_learning.py runs benchmarks/learning with small budgets."""
FIRST_PAGES = ("README.md", "tutorial.md", "launching.md", "python-api.md", "migrating.md")
"""Pages whose commands `make test` runs. tests/test_documents.py reads the commands of all pages, and compares flags and fields."""
LAUNCHED = {
    line.partition(" train ")[0].replace("4", "2") + "fabric" * ("runtime.kind" in line): line
    for page in DOCUMENTS
    for line in commands(page)
    if LAUNCHER.match(line)
}
"""One command for each way to launch."""
SHORT = " --rollout.steps 32 --ppo.minibatches 4 --total-steps 1024 --runtime.compile off --run.progress off"


def test_every_command_is_run_by_a_test() -> None:
    """Commands run in tests.pages.reader, in test_documents.py (benchmarks), or in a test below."""
    lines = [line for page in DOCUMENTS for line in commands(page)]
    run_by_reader = ("lockstep ", "timeout ", "RANK=")
    assert [
        line for line in lines if not (line.startswith(run_by_reader) or LAUNCHER.match(line) or NOT_RUN.match(line))
    ] == []


def test_fields_that_the_pages_name_exist() -> None:
    known = {f"{section}.{field}" for section, field, _ in known_fields()}
    named = re.compile(rf"(?<![\w./\"-])(?:--)?((?:{'|'.join(known_sections())})\.(?:no-)?[a-z][\w-]*)(?![\w.(/])")
    for page in DOCUMENTS:
        text = page.read_text(encoding="utf-8")
        if page.name == "migrating.md":  # the first column has the names of others
            text = re.sub(r"^\|[^|]*\|", "", text, flags=re.MULTILINE)
        for code in re.findall(r"`([^`\n]+)`", text):
            fields = {
                field.replace("-", "_") for field in named.findall(code) if not field.endswith((".py", ".png", ".yml"))
            }
            assert fields <= known, (page.name, code)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.extra("Box2D", "mujoco", "ale_py", "matplotlib", "imageio_ffmpeg", "onnxscript", "huggingface_hub")
@pytest.mark.parametrize(
    "page",
    [page if page.name in FIRST_PAGES else pytest.param(page, marks=pytest.mark.exhaustive) for page in DOCUMENTS],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_commands_of_a_page_succeed(page: Path, tmp_path: Path, environ: dict[str, str], warm: Warm) -> None:
    for path in (ROOT / "examples").glob("*.py"):
        shutil.copy(path, tmp_path)
    before = PREPARED.get(str(page.relative_to(ROOT)), [])
    with serving() as hub:
        hub_variables = {
            "HF_ENDPOINT": hub.address,
            "HF_TOKEN": TOKEN,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(tmp_path / "cache"),
        }
        variables = environ | hub_variables
        reader = warm.start(page, *before, cwd=tmp_path, environ=variables, module="tests.pages.reader")
        try:
            done = reader.wait(390)
        finally:
            reader.kill()
    assert done.rc == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.extra("mujoco", "lightning_fabric")
@pytest.mark.command("mpirun")
@pytest.mark.parametrize(
    "line",
    # tests/agreement/test_runtimes.py launches with Fabric too
    [pytest.param(line, marks=pytest.mark.exhaustive) if "fabric" in line else line for line in LAUNCHED.values()],
)
def test_launcher_commands_succeed(line: str, tmp_path: Path, environ: dict[str, str]) -> None:
    """Run the command on 2 ranks for a few iterations."""
    variables = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), environ["PATH"]]),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "TMPDIR": str(tmp_path),
    }
    command = re.sub(r"(-n|--devices|--nproc-per-node) 4", r"\1 2", line.partition(" #")[0])
    shell = ["bash", "-ec", command + SHORT]
    done = subprocess.run(shell, cwd=tmp_path, env=environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (metrics,) = tmp_path.glob("runs/*/metrics.jsonl")
    assert metrics.read_text()


@pytest.mark.slow
@pytest.mark.extra("mujoco")
def test_manual_launch_in_two_shells_succeeds(tmp_path: Path, environ: dict[str, str]) -> None:
    lines = [line for line in commands(ROOT / "docs/launching.md") if line.startswith("RANK=")]
    typed = "\n".join(re.sub(r"( &|)$", SHORT + r"\1", line, count=1) for line in lines) + "\nwait"
    shell = ["bash", "-ec", typed.replace("/shared/", f"{tmp_path}/")]
    path = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), environ["PATH"]])}
    done = subprocess.run(shell, cwd=tmp_path, env=environ | path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("runs/*/metrics.jsonl"))) == 1
