"""Train a lander and two runs of CartPole, and make the pictures of the documentation from the runs.

    python benchmarks/pictures.py [FOLDER [RUNS]]

FOLDER, by default `docs`, gets `dashboard.png` and in `pictures/` `live-view.png`, `report.png`, `policy.png` and `episode.png`. Runs
that RUNS holds already are not trained again; by default the runs are in a temporary folder. Needs the extras `box2d`, `dashboard`,
`video` and `report`, and the program `chromium`.
"""

import io
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from imageio_ffmpeg import get_ffmpeg_exe
from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI

from lockstep.dashboard.runs import key
from lockstep.run.evaluations import EVALUATIONS
from lockstep.run.folder import RunFolder
from lockstep.telemetry.screen import draw, read_run_facts
from lockstep.telemetry.status import RunStatus
from lockstep.telemetry.tail import MetricsTail

COLUMNS = 80
SHOWN = 0.6
"""Fraction of the run after which the live view is shown."""
COLORS = 256
"""Colors of a written picture, which keep it below 120 kB."""
PAGE = """<body style="margin: 0; padding: 16px; background: #0c0c0c; color: #d9d9d9">
<pre style="margin: 0; font: 16px/1.3 'DejaVu Sans Mono', monospace">{code}</pre></body>"""


def lockstep(*words: object) -> None:
    """Run a command in a process of its own, which unlocks its run at the end. Raises CalledProcessError if it fails."""
    subprocess.run([sys.executable, "-m", "lockstep", *map(str, words)], check=True)


def live_view(run: RunFolder) -> str:
    """Return the live view of the run after `SHOWN` of its iterations, as an HTML page."""
    status = RunStatus()
    rows, _ = MetricsTail(run.path / "metrics.jsonl").read()
    rows = rows[: int(SHOWN * len(rows))]
    for row in rows:
        status.append(row)
    for row in MetricsTail(run.path / EVALUATIONS).read()[0]:
        if row["iteration"] <= rows[-1]["iteration"]:  # type: ignore[operator]
            status.append_evaluation(row)
    status.update()
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(draw(status, read_run_facts(run), "", COLUMNS))
    return PAGE.format(code=console.export_html(theme=MONOKAI, inline_styles=True, code_format="{code}"))


def screenshot(address: str, width: int, height: int, to: Path) -> None:
    """Write a picture of the top of an HTML page."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},{height}"]
    flags += ["--virtual-time-budget=5000", f"--screenshot={to}"]  # scripts load data after the page
    subprocess.run(["chromium", *flags, address], check=True, capture_output=True)


def dashboard(runs: Path, shown: Sequence[str], to: Path) -> None:
    """Write a picture of the dashboard of a folder, with the curves of the runs `shown`."""
    command = [sys.executable, "-m", "lockstep", "dashboard", runs.name, "--port", "0"]
    with subprocess.Popen(command, cwd=runs.parent, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            screenshot(f"{address}#{','.join(map(key, shown))}", 1100, 880, to)
        finally:
            process.send_signal(signal.SIGINT)


def frame(video: Path, second: float, to: Path) -> None:
    """Write the frame of a video at `second`."""
    cut = ["-ss", str(second), "-i", str(video), "-frames:v", "1"]
    subprocess.run([get_ffmpeg_exe(), "-y", *cut, str(to)], check=True, capture_output=True)


def train(runs: Path) -> RunFolder:
    """Train the runs in `runs`, and return that of the lander, in which one of two ranks collects while the other trains."""
    plan = ("--plan", "1:1", "--plan.lag", 1, "--plan.shards", 2, "--ranks", 2, "--run.evaluate-every", 30)
    for name, words in {
        "lander": ("lunarlander", *plan),
        "cartpole": ("cartpole", "--ranks", 1, "--run.evaluate-every", 5),
        "few-epochs": ("cartpole", "--ranks", 1, "--run.evaluate-every", 5, "--ppo.epochs", 5),
    }.items():
        if not (runs / name).exists():
            lockstep("train", *words, "--out", runs, "--name", name, "--run.progress", "off")
    return RunFolder(runs / "lander")


def make_pictures(run: RunFolder, folder: Path) -> None:
    """Draw the run, and write the pictures into `folder`."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        lockstep("play", run.path, "--video")
        lockstep("eval", run.path, "--episodes", 20)
        lockstep("report", run.path)
        lockstep("plot", run.path, "--what", "policy", "--out", work / "policy.png")
        (work / "view.html").write_text(live_view(run), encoding="utf-8")
        screenshot((work / "view.html").as_uri(), 812, 212, work / "live-view.png")
        screenshot((run.path / "report.html").resolve().as_uri(), 1000, 1400, work / "report.png")
        dashboard(run.path.parent, ("cartpole", "few-epochs"), work / "dashboard.png")
        frame(next((run.path / "videos").glob("*.mp4")), 2, work / "episode.png")
        (folder / "pictures").mkdir(parents=True, exist_ok=True)
        for name in ("live-view", "report", "policy", "episode", "dashboard"):
            picture = Image.open(work / f"{name}.png").convert("RGB").quantize(COLORS, kmeans=2)
            picture.save((folder if name == "dashboard" else folder / "pictures") / f"{name}.png", optimize=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        runs = Path(sys.argv[2]).resolve() if sys.argv[2:] else Path(temporary) / "runs"
        make_pictures(train(runs), Path(sys.argv[1] if sys.argv[1:] else "docs"))
