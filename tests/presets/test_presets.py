import pytest

from lockstep import presets
from lockstep.config.compose import load


def test_cartpole_is_a_preset() -> None:
    assert "cartpole" in presets.names()


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_is_a_valid_config_with_a_description(name: str) -> None:
    config = load(presets.read(name), None, {})
    assert 0 < len(presets.text(name).partition("\n")[0]) <= 120
    assert config.env.count * config.rollout.steps % (config.ppo.minibatches or 1) == 0


def test_message_about_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"^cartpoel: unknown preset; did you mean cartpole\?$"):
        presets.read("cartpoel")


@pytest.mark.parametrize("name", ["", "..", "../settings", "cartpole.yaml", "CARTPOLE"])
def test_paths_are_refused_as_names(name: str) -> None:
    with pytest.raises(ValueError, match=r"^Acrobot-v1: unknown preset; for an environment, give --env Acrobot-v1$"):
        presets.text("Acrobot-v1")
    with pytest.raises(ValueError, match=r"^mine.yaml: unknown preset; pass a config file with --config$"):
        presets.text("mine.yaml")
    with pytest.raises(ValueError, match="unknown preset"):
        presets.text(name)
