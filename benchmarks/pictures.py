"""Train a lander and make the pictures of the documentation from the run.

    python benchmarks/pictures.py [FOLDER]

FOLDER, by default `docs/pictures`, gets `live-view.png`, `report.png`, `policy.png` and `episode.png`. Needs the extras `box2d`, `video` and
`report`, and the program `chromium`.
"""

import io
import subprocess
import sys
import tempfile
from pathlib import Path

from imageio_ffmpeg import get_ffmpeg_exe
from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI

from lockstep.cli.main import main
from lockstep.run.evaluations import EVALUATIONS
from lockstep.run.folder import RunFolder
from lockstep.telemetry.screen import draw, read_run_facts
from lockstep.telemetry.status import RunStatus
from lockstep.telemetry.tail import MetricsTail

COLUMNS = 80
SHOWN = 0.6
"""Fraction of the run after which the live view is shown."""
COLORS = 128
"""Colors of a written picture, which keep it below 120 kB."""
PAGE = """<body style="margin: 0; padding: 16px; background: #0c0c0c; color: #d9d9d9">
<pre style="margin: 0; font: 16px/1.3 'DejaVu Sans Mono', monospace">{code}</pre></body>"""


def lockstep(*words: object) -> None:
    """Run a command in this process. Raise RuntimeError if it fails."""
    if main([str(word) for word in words]):
        raise RuntimeError(f"lockstep {' '.join(map(str, words))} failed")


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


def screenshot(page: Path, width: int, height: int, to: Path) -> None:
    """Write a picture of the top of an HTML page."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},{height}"]
    subprocess.run(["chromium", *flags, f"--screenshot={to}", page.as_uri()], check=True, capture_output=True)


def frame(video: Path, second: float, to: Path) -> None:
    """Write the frame of a video at `second`."""
    cut = ["-ss", str(second), "-i", str(video), "-frames:v", "1"]
    subprocess.run([get_ffmpeg_exe(), "-y", *cut, str(to)], check=True, capture_output=True)


def train_lander(folder: Path) -> RunFolder:
    """Train in `folder` on two ranks, one of which collects while the other trains."""
    plan = ("--plan", "1:1", "--plan.lag", 1, "--plan.shards", 2, "--ranks", 2, "--run.evaluate-every", 30)
    lockstep("train", "lunarlander", *plan, "--out", folder, "--name", "lander", "--run.progress", "off")
    return RunFolder(folder / "lander")


def make_pictures(run: RunFolder, folder: Path) -> None:
    """Draw the run, and write the pictures into `folder`."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        lockstep("play", run.path, "--video")
        lockstep("eval", run.path, "--episodes", 20)
        lockstep("report", run.path)
        lockstep("plot", run.path, "--what", "policy", "--axes", 0, 1, "--out", work / "policy.png")
        (work / "view.html").write_text(live_view(run), encoding="utf-8")
        screenshot(work / "view.html", 812, 212, work / "live-view.png")
        screenshot(run.path / "report.html", 1000, 1400, work / "report.png")
        frame(next((run.path / "videos").glob("*.mp4")), 2, work / "episode.png")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("live-view", "report", "policy", "episode"):
            picture = Image.open(work / f"{name}.png").convert("RGB").quantize(COLORS)
            picture.save(folder / f"{name}.png", optimize=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        make_pictures(train_lander(Path(temporary)), Path(sys.argv[1] if sys.argv[1:] else "docs/pictures"))
