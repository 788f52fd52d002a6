"""The web application: what it refuses, and what it answers about broken run folders."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="pip install 'lockstep-rl[dashboard]'")
pytest.importorskip("httpx2", reason="pip install 'lockstep-rl[hub]'")
from starlette.testclient import TestClient

from lockstep.dashboard.app import make_app
from lockstep.run.folder import RunFolder

TOKEN = "secret-token"
HOST = "http://127.0.0.1:8421"
EVIL = "<img src=x onerror=alert(1)>"


def make_run(path: Path, count: int = 3) -> Path:
    RunFolder.create(path, {"env": {"id": "CartPole-v1"}, "run": {"total_steps": 100, "solved_return": 475}}, {})
    lines = [
        {"iteration": i, "env_steps": 10 * i, "seconds": i / 2, "episodes": 1, "return_mean": float(i)}
        for i in range(1, count + 1)
    ]
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs" / "first")
    (tmp_path / "secret.txt").write_text("secret")
    return tmp_path / "runs"


@pytest.fixture
def client(root: Path) -> TestClient:
    client = TestClient(make_app(root, TOKEN), HOST)
    client.params = {"token": TOKEN}
    return client


def listed(client: TestClient) -> dict[str, Any]:
    return {row["path"]: row for row in client.get("/runs").json()["runs"]}


def details(client: TestClient, path: str) -> Any:
    return client.get(f"/runs/{listed(client)[path]['key']}").json()


PATHS = ("/", "/runs", "/static/page.js", "/runs/0123456789abcdef", "/runs/a/videos/b", "/nothing")


@pytest.mark.parametrize("path", PATHS)
def test_requests_without_the_token_are_refused(path: str, client: TestClient) -> None:
    bare = TestClient(client.app, HOST)
    for query in ("", "?token=", "?token=secret", f"?token={TOKEN}x", "?token=%ff", "?token=%C3%A4", f"?Token={TOKEN}"):
        answer = bare.get(path + query)
        assert (answer.status_code, "secret" in answer.text) == (403, False)


@pytest.mark.parametrize("path", PATHS)
def test_the_only_method_is_get(path: str, client: TestClient) -> None:
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
        assert client.request(method, path).status_code == 405


def test_other_hosts_are_refused(client: TestClient) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:8421", "", "0.0.0.0", "[::1"):
        assert client.get("/", headers={"Host": host}).status_code == 400
    for host in ("localhost", "localhost:9000", "127.0.0.1:1"):
        assert client.get("/", headers={"Host": host}).status_code == 200


def test_page_loads_only_own_files(client: TestClient) -> None:
    page = client.get("/")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    links = [word.split('"')[1] for word in page.text.split() if word.startswith(("src=", "href="))]
    addresses = [link for link in links if link != "data:,"]
    assert len(addresses) == 10
    for address in addresses:
        assert address.endswith(f"?token={TOKEN}")
        answer = TestClient(client.app, HOST).get(address)
        assert (answer.status_code, answer.headers["X-Content-Type-Options"]) == (200, "nosniff")
        assert "://" not in answer.text.replace("https://github.com/leeoniya/uPlot", "").replace(
            "http://www.w3.org", ""
        )
    assert "style=" not in page.text
    assert "onclick" not in page.text


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e%2fapp.py",
        "/static/..%2f..%2fcli/main.py",
        "/static/page.html",
        "/runs/../secret.txt",
        "/runs/first",
        "/runs/%2e%2e",
        "/runs/{key}/videos/..%2f..%2fsecret.txt",
        "/runs/{key}/videos/config.json",
        "//etc/passwd",
    ],
)
def test_paths_lead_nowhere(path: str, client: TestClient) -> None:
    assert client.get(path.format(key=listed(client)["first"]["key"])).status_code == 404


def test_links_that_lead_out_are_not_followed(root: Path, client: TestClient) -> None:
    outside = make_run(root.parent / "outside")
    (root / "linked").symlink_to(outside)
    make_run(root / "partly")
    (root / "partly" / "metrics.jsonl").unlink()
    (root / "partly" / "metrics.jsonl").symlink_to(outside / "metrics.jsonl")
    (outside / "videos").mkdir()
    (outside / "videos" / "a.mp4").write_text("secret")
    (root / "first" / "videos").mkdir()
    (root / "first" / "videos" / "b.mp4").symlink_to(outside / "videos" / "a.mp4")
    make_run(root / "other")
    (root / "other" / "videos").symlink_to(outside / "videos")
    rows = listed(client)
    assert rows["linked"]["why"] == "linked is a symbolic link that leads out of runs"
    assert rows["partly"]["why"] == "metrics.jsonl is not a regular file"
    for name in ("linked", "partly"):
        assert rows[name]["state"] == "broken"
        assert details(client, name) == {"error": rows[name]["why"]}
    assert details(client, "first")["videos"] == details(client, "other")["videos"] == []


def test_video_is_served_in_parts(root: Path, client: TestClient) -> None:
    (root / "first" / "videos").mkdir()
    for number, name in enumerate(("old.mp4", "new.mp4", "new.mp4.partial")):
        (root / "first" / "videos" / name).write_bytes(b"0123456789")
        os.utime(root / "first" / "videos" / name, (number, number))
    videos = details(client, "first")["videos"]
    assert [video["name"] for video in videos] == ["new.mp4", "old.mp4"]
    address = f"/runs/{listed(client)['first']['key']}/videos/{videos[0]['key']}"
    part = client.get(address, headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.content, part.headers["Content-Type"]) == (206, b"234", "video/mp4")
    assert "default-src 'none'" in part.headers["Content-Security-Policy"]


def test_curves_grow_with_the_metrics(root: Path, client: TestClient) -> None:
    before = listed(client)["first"]
    assert {name: before[name] for name in ("state", "env", "steps", "return_mean", "total_steps")} == {
        "state": "new",
        "env": "CartPole-v1",
        "steps": 30,
        "return_mean": 2.0,
        "total_steps": 100,
    }
    answer = details(client, "first")
    assert (answer["goal"], answer["more"], answer["skipped"], answer["version"]) == (475, False, 0, before["version"])
    assert answer["curves"]["metrics"]["return_mean"] == {"mean": [1, 2, 3]}
    assert listed(client)["first"]["version"] == before["version"]
    with (root / "first" / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 4, "env_steps": 40, "return_mean": 4.0}\n')
    after = listed(client)["first"]
    assert (after["steps"], after["version"] != before["version"]) == (40, True)
    position = ".".join(map(str, answer["curves"]["position"]))
    curves = client.get(f"/runs/{after['key']}", params={"position": position}).json()["curves"]
    assert (curves["from"], curves["metrics"]["return_mean"]) == (3, {"mean": [4]})
    with RunFolder(root / "first").locked():
        assert listed(client)["first"]["state"] == "running"
    assert listed(client)["first"]["state"] == "new"


def test_wrong_positions_give_all_points(client: TestClient) -> None:
    address = f"/runs/{listed(client)['first']['key']}"
    for position in ("", "x", "1.2", "-1.-1.-1", "-1.1.999999999999999999999", "1.1.1.1", "9" * 5000):
        assert client.get(address, params={"position": position}).json()["curves"]["from"] == 0


def test_runs_appear_and_disappear(root: Path, client: TestClient) -> None:
    key = listed(client)["first"]["key"]
    make_run(root / "sweep" / "runs" / EVIL)
    assert list(listed(client)) == ["first", f"sweep/runs/{EVIL}"]
    for file in sorted(root.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    root.rmdir()
    assert "error" in client.get(f"/runs/{key}").json()
    assert listed(client) == {}
    assert client.get(f"/runs/{key}").status_code == 404


def break_config(run: Path, content: bytes) -> None:
    (run / "config.json").write_bytes(content)


def replace_by_fifo(run: Path, name: str) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)


def enlarge(run: Path, name: str, size: int) -> None:
    with (run / name).open("ab") as file:
        file.truncate(size)


BREAK: dict[str, tuple[Any, ...]] = {
    "cut": (break_config, b'{"env": {'),
    "binary": (break_config, bytes(range(256))),
    "list": (break_config, b"[1]"),
    "deep": (break_config, b"[" * 100_000),
    "empty": (break_config, b""),
    "fifo-config": (replace_by_fifo, "config.json"),
    "fifo-metrics": (replace_by_fifo, "metrics.jsonl"),
    "fifo-starts": (replace_by_fifo, "starts.jsonl"),
    "fifo-best": (replace_by_fifo, "best.json"),
    "fifo-evaluations": (replace_by_fifo, "evaluations.jsonl"),
    "huge-config": (enlarge, "config.json", 2**40),
    "huge-starts": (enlarge, "starts.jsonl", 2**40),
}


@pytest.mark.parametrize("name", BREAK)
def test_broken_run_is_shown_with_its_error(name: str, root: Path, client: TestClient) -> None:
    function, *arguments = BREAK[name]
    function(make_run(root / name), *arguments)
    rows = listed(client)
    assert (rows[name]["state"], rows["first"]["state"]) == ("broken", "new")
    assert rows[name]["why"]
    assert "\n" not in rows[name]["why"]
    assert details(client, name)["error"]


HOSTILE = [
    {"iteration": 2, "env_steps": 1e300, "seconds": 1e-300, "fps": float("inf"), "return_mean": "x"},
    {"iteration": 10**400, "env_steps": 10**400, "seconds": 1},
    {"iteration": 3, "env_steps": None, "seconds": [], "idle": {}, "loss": [[1]], "\udcff": 1},
    {"iteration": True},
    {"iteration": {}},
]


def test_hostile_values_break_nothing(root: Path, client: TestClient) -> None:
    run = make_run(root / os.fsdecode(b"name-\xff"))
    tree = {
        "env": {"id": [EVIL, "\udcff", "\ud800"]},
        "run": {"seed": {}, "total_steps": "many", "solved_return": "much"},
    }
    (run / "config.json").write_text(json.dumps(tree))
    (run / "best.json").write_text('{"iteration": 1, "return_mean": NaN, "episodes": 1e999}')
    start = {"event": "start", "time": "2030-01-01T00:00:00", "iteration": 0, "last": 1, "ranks": 1, "plan": 1}
    end = {"event": "end", "time": "2030-01-01T00:00:00", "iteration": 0, "how": ["done"], "why": "\udcff"}
    lines = [{**start, "host": "", "packages": {}}, end, 7, {"event": []}, {"event": "end", "time": 5}]
    (run / "starts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for last in HOSTILE:
        with (run / "metrics.jsonl").open("a") as file:
            file.write(f'{json.dumps(last)}\nnull\n{"[" * 2000}\n{{"half": ')
        assert listed(client)["name-\ufffd"]["state"] in ("killed", "broken", "done")
        assert "\ufffd" in client.get("/runs").text or "\\ufffd" in client.get("/runs").text
        answer = details(client, "name-\ufffd")
        assert answer["goal"] is None
        assert answer["curves"]["axes"]["iteration"][:3] == [1, 2, 3]


def test_long_metrics_are_read_in_bounded_steps(
    root: Path, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.dashboard.curves._BLOCK", 2**14)
    run = make_run(root / "long", 0)
    line = {"iteration": 0, "env_steps": 0, "seconds": 0.0} | {f"metric_{number}": 1.5 for number in range(40)}
    with (run / "metrics.jsonl").open("w") as file:
        for number in range(1, 601):
            file.write(f"{json.dumps(line | {'iteration': number, 'env_steps': number})}\n")
        file.write("x" * 50_000)
    rounds, position, answer = 0, "", {"more": True}
    while answer["more"]:
        answer = client.get(f"/runs/{listed(client)['long']['key']}", params={"position": position}).json()
        position = ".".join(map(str, answer["curves"]["position"]))
        rounds += 1
    assert rounds > 10
    complete = details(client, "long")
    assert complete["curves"]["axes"]["env_steps"][-1] == 600
    assert len(complete["curves"]["axes"]["env_steps"]) == 300
    assert complete["skipped"] == 3  # pieces of the long line


def test_colors_are_those_of_the_report(client: TestClient) -> None:
    from lockstep import report

    template = (Path(next(iter(report.__path__))) / "base.html").read_text()
    palette = [line.strip() for line in template.splitlines() if "--paper: " in line or "--series-0: " in line]
    assert len(palette) == 4
    style = client.get("/static/page.css").text
    assert [line for line in palette if line not in style] == []


def test_age_grows_without_reading_again(client: TestClient) -> None:
    before = listed(client)["first"]["age"]
    time.sleep(0.01)
    assert listed(client)["first"]["age"] > before
