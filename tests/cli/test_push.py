"""Push of a run to the Hub and evaluation from there, by processes started as users start them."""

from pathlib import Path

import pytest
from tests.hub.fake_hub import TOKEN, serving

SHORT = (
    *("--total-steps", 1024, "--rollout.steps", 32, "--ppo.minibatches", 1, "--run.checkpoint-every", 2),
    *("--run.progress", "off", "--ranks", 1, "--name", "first"),
)


@pytest.mark.slow
@pytest.mark.extra("huggingface_hub")
def test_pushed_agent_evaluates_like_the_local_run(run_cli, tmp_path: Path) -> None:
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
        from_hub, from_folder = (
            run_cli("eval", run, "--episodes", 5, env=env) for run in ("hub:me/first", "runs/first")
        )
        assert (from_hub.rc, from_hub.stderr) == (0, "")
        assert from_hub.stdout.splitlines()[:3] == from_folder.stdout.splitlines()[:3]
        refused = run_cli("eval", "hub:me/first", env={**env, "HF_TOKEN": "hf_wrong"})
        assert (refused.rc, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
        assert "hf_wrong" not in refused.stderr
    without_hub = run_cli("eval", "hub:me/first", env=env)
    assert without_hub == (2, "", f"lockstep: cannot connect to the Hub at {hub.address} (ConnectError)\n")
    files_with_token = [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert files_with_token == []
