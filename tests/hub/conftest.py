"""Fixtures: a fake Hub server for the client of this process, and a short run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hub.fake_hub import TOKEN, FakeHub, serving

import lockstep


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Start a fake Hub and direct the client to it. The client has a valid token."""
    client = pytest.importorskip("huggingface_hub", reason="pip install 'lockstep-rl[hub]'")
    from huggingface_hub import constants

    with serving() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
        # the client computes this template from ENDPOINT only once, at import
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # upload large files with the LFS protocol
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        client.close_session()
        yield server
        client.close_session()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run of CartPole with checkpoints of iterations 2 and 4."""
    folder = tmp_path_factory.mktemp("runs")
    options = {"run.checkpoint_every": 2, "run.progress": "off", "rollout.steps": 32, "ppo.minibatches": 1}
    run = lockstep.train("cartpole", total_steps=1024, out=str(folder), name="first", plan={"shards": 1}, **options)
    return run.path
