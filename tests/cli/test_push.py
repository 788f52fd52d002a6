"""A run to the Hub and back, by processes as a user starts them."""

from pathlib import Path

import pytest
from tests.hub.fake_hub import TOKEN, serving

SHORT = ("--total-steps", 1024, "--run.checkpoint-every", 2, "--run.progress", "off", "--ranks", 1, "--name", "first")


@pytest.mark.slow
@pytest.mark.extra("huggingface_hub")
def test_there_and_back(run_cli, tmp_path: Path) -> None:
    assert run_cli("train", "cartpole", *SHORT).rc == 0
    with serving() as hub:
        env = {
            "HF_ENDPOINT": hub.address,
            "HF_TOKEN": TOKEN,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(tmp_path / "cache"),
        }
        pushed = run_cli("push", "first", "--username", "me", "--skip-play", env=env)
        assert pushed == (0, f"{hub.address}/me/first (private): 7 files\nlockstep play hub:me/first\n", "")
        there, here = (run_cli("eval", run, "--episodes", 5, env=env) for run in ("hub:me/first", "runs/first"))
        assert (there.rc, there.stderr) == (0, "")
        assert there.stdout.splitlines()[:3] == here.stdout.splitlines()[:3]
        refused = run_cli("eval", "hub:me/first", env={**env, "HF_TOKEN": "hf_wrong"})
        assert (refused.rc, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
        assert "hf_wrong" not in refused.stderr
    gone = run_cli("eval", "hub:me/first", env=env)
    assert gone == (2, "", f"lockstep: cannot connect to the Hub at {hub.address} (ConnectError)\n")
    written = [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert written == []
