"""Supported spaces, the conversion of observations and actions, and messages for unsupported spaces."""

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as kinds

from lockstep.envs.actions import action_converter, each_action
from lockstep.envs.layout import ContractViolation, ObservationLayout
from lockstep.envs.spaces import describe

BOX = kinds.Box(-1, 1, (2, 3), np.float64)
TWO = kinds.Discrete(2)
IMAGE = kinds.Box(0, 255, (6, 5, 3), np.uint8)


@pytest.mark.parametrize(
    ("observation", "action", "words"),
    [
        (kinds.Text(3), TWO, "its observations are Text, which is not supported; supported spaces: Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple of these"),
        (kinds.Dict(image=IMAGE, mission=kinds.Text(3)), TWO, "its observations have a Text in ['mission'], which is not supported"),
        (kinds.Dict(a=kinds.Tuple((BOX, kinds.Graph(BOX, None)))), TWO, "its observations have a Graph in ['a'][1], which"),
        (kinds.Box(0, 255, (2, 4, 6, 5, 3), np.uint8), TWO, "its observations are Box of shape (2, 4, 6, 5, 3) and type uint8, which"),
        (kinds.Dict(), TWO, "its observations are empty"),
        (BOX, kinds.Box(0, 5, (2,), np.int64), "its actions are Box of shape (2,) and type int64, which"),
        (BOX, kinds.Tuple((TWO, kinds.Sequence(BOX))), "its actions have a Sequence in [1], which"),
        (BOX, kinds.Tuple(()), "its actions are empty"),
        (kinds.Dict(a=BOX, action_mask=kinds.MultiBinary(3)), TWO, "its action_mask has 3 entries, but the choices of its actions have 2 options"),
        (kinds.Dict(a=BOX, action_mask=kinds.MultiBinary(3)), BOX, "its action_mask has 3 entries, but the choices of its actions have 0 options"),
    ],
)  # fmt: skip
def test_unsupported_spaces_are_named(observation: gym.Space[object], action: gym.Space[object], words: str) -> None:
    with pytest.raises(ValueError, match=f"^env.id is 'X-v0': {re.escape(words)}"):
        describe(observation, action, "X-v0")


def stacked(space: gym.Space[Any], samples: list[Any]) -> Any:
    """Return a batch of samples in the form of Gymnasium's vector environments."""
    if isinstance(space, kinds.Dict):
        return {key: stacked(part, [sample[key] for sample in samples]) for key, part in space.spaces.items()}
    if isinstance(space, kinds.Tuple):
        return tuple(stacked(part, [sample[i] for sample in samples]) for i, part in enumerate(space.spaces))
    return np.array(samples)


@pytest.mark.parametrize(
    "space",
    [
        kinds.Box(-1, 1, (3,), np.float32),
        BOX,
        kinds.Box(0, 9, (4,), np.int32),
        kinds.Box(0, 255, (4,), np.uint8),
        kinds.Discrete(5, start=3),
        kinds.MultiBinary([2, 2]),
        kinds.MultiDiscrete([[2, 3], [4, 1]], start=[[0, -2], [7, 1]]),
        kinds.Tuple((kinds.Discrete(3), BOX, kinds.Discrete(4, start=-1))),
        kinds.Dict(z=kinds.Dict(b=BOX, a=kinds.MultiBinary(2)), b=kinds.Tuple((TWO, kinds.MultiDiscrete([2, 5])))),
    ],
)
def test_single_observations_and_batches_give_the_same_rows(space: gym.Space[Any]) -> None:
    space.seed(1)
    samples = [space.sample() for _ in range(6)]
    spaces = describe(space, TWO, "X-v0")
    layout = ObservationLayout(space, spaces)
    for sample in samples:
        layout.check(sample)
    batch = stacked(space, samples)
    layout.check(batch, (6,))
    rows = np.stack([layout.row(sample, {}) for sample in samples])
    assert rows.shape == (6, spaces.observation_size) == (6, spaces.feature_size)
    assert spaces.images == ()
    assert layout.rows(batch, {}).dtype == layout.dtype
    assert np.array_equal(rows.astype(layout.dtype), layout.rows(batch, {}))
    assert np.array_equal(rows, np.stack([kinds.flatten(space, sample) for sample in samples]))


def test_images_are_concatenated_channels_first() -> None:
    gray, stack = kinds.Box(0, 255, (4, 5), np.uint8), kinds.Box(0, 255, (2, 4, 3), np.uint8)
    space = kinds.Dict({"c": kinds.Tuple((stack, TWO)), "a": IMAGE, "b": gray})
    spaces = describe(space, TWO, "X-v0")
    assert (spaces.images, spaces.pixel_count, spaces.observation_size) == (((3, 6, 5), (1, 4, 5), (2, 4, 3)), 134, 2)
    space.seed(3)
    samples = [space.sample() for _ in range(4)]
    layout = ObservationLayout(space, spaces)
    for sample in samples:
        first, second, third = np.split(layout.pixels(sample), [90, 110])
        assert np.array_equal(first.reshape(3, 6, 5), sample["a"].transpose(2, 0, 1))
        assert np.array_equal(second.reshape(4, 5), sample["b"])
        assert np.array_equal(third.reshape(2, 4, 3), sample["c"][0])
    batch = layout.batch_pixels(stacked(space, samples))
    assert batch.dtype == np.uint8
    assert np.array_equal(batch, np.stack([layout.pixels(sample) for sample in samples]))
    assert layout.rows(stacked(space, samples), {}).shape == (4, 2)


@pytest.mark.parametrize("channels_last", [False, True])
def test_stack_of_images_becomes_one_image(channels_last: bool) -> None:
    space = kinds.Box(0, 255, (4, 6, 5, 3) if channels_last else (4, 3, 6, 5), np.uint8, seed=3)
    spaces = describe(space, TWO, "X-v0")
    assert spaces.images == ((12, 6, 5),)
    layout, samples = ObservationLayout(space, spaces), [space.sample() for _ in range(2)]
    for sample in samples:
        frames = sample.transpose(0, 3, 1, 2) if channels_last else sample
        assert np.array_equal(layout.pixels(sample).reshape(12, 6, 5), np.concatenate(frames))
    assert np.array_equal(layout.batch_pixels(np.stack(samples)), np.stack([layout.pixels(x) for x in samples]))


def test_rows_of_a_single_image_are_empty() -> None:
    spaces = describe(IMAGE, TWO, "X-v0")
    layout = ObservationLayout(IMAGE, spaces)
    images = np.stack([IMAGE.sample() for _ in range(3)])
    assert layout.row(images[0], {}).shape == (0,)
    assert layout.rows(images, {}).shape == (3, 0)


def test_masks_are_the_last_columns() -> None:
    space = kinds.Dict(action_mask=kinds.Tuple((kinds.MultiBinary(2), kinds.Box(0, 1, (3,), np.int8))), at=BOX)
    acted = kinds.MultiDiscrete([2, 3])
    spaces = describe(space, acted, "X-v0")
    assert (spaces.observation_size, spaces.feature_size, spaces.mask_size) == (11, 6, 5)
    layout = ObservationLayout(space, spaces)
    observation = {"at": np.ones((2, 3)), "action_mask": (np.array([0, 1]), np.array([1, 0, 1], dtype=np.int8))}
    layout.check(observation)
    assert layout.row(observation, {}).tolist() == [1] * 6 + [0, 1, 1, 0, 1]
    assert layout.rows(stacked(space, [observation, observation]), {}).tolist() == [[1] * 6 + [0, 1, 1, 0, 1]] * 2
    observation["action_mask"] = (np.array([0, 1]), np.array([0, 0, 0], dtype=np.int8))
    assert layout.row(observation, {}, ended=True).tolist() == [1] * 11
    assert layout.rows(stacked(space, [observation]), {}, np.array([True])).tolist() == [[1] * 11]
    with pytest.raises(ContractViolation, match=r"^returned an action_mask that forbids all 3 options of choice 1$"):
        layout.row(observation, {})
    with pytest.raises(ContractViolation, match="forbids all 3 options of choice 1"):
        layout.rows(stacked(space, [observation]), {}, np.array([False]))


def test_masks_are_read_from_the_info_dictionary() -> None:
    mask = np.array([0, 1, 1], dtype=np.int8)
    spaces = describe(TWO, kinds.Discrete(3), "X-v0", {"action_mask": mask})
    assert (spaces.observation_size, spaces.mask_size) == (5, 3)
    layout = ObservationLayout(TWO, spaces)
    assert layout.row(1, {"action_mask": mask}).tolist() == [0, 1, 0, 1, 1]
    assert layout.row(1, {}, ended=True).tolist() == [0, 1, 1, 1, 1]
    assert layout.rows(np.array([0, 1]), {"action_mask": np.stack([mask, mask])}).tolist() == [[1, 0, 0, 1, 1], [0, 1, 0, 1, 1]]  # fmt: skip
    for info, words in (
        ({}, "returned no action_mask"),
        ({"action_mask": mask[:2]}, "returned an action_mask of 2 entries"),
    ):
        with pytest.raises(ContractViolation, match=f"^{words}; expected 3 entries"):
            layout.row(1, info)
    assert describe(BOX, BOX, "X-v0", {"action_mask": None}).mask_size == 0
    with pytest.raises(
        ValueError, match="its action_mask has 3 entries, but the choices of its actions have 4 options"
    ):
        describe(TWO, kinds.MultiDiscrete([2, 2]), "X-v0", {"action_mask": mask})


@pytest.mark.parametrize(
    ("space", "observation", "words"),
    [
        (kinds.Box(-1, 1, (3,)), np.zeros(2, np.float32), "returned an observation outside its observation space: got ndarray of shape (2,) and type float32, expected Box(-1.0, 1.0, (3,), float32)"),
        (kinds.Box(-1, 1, (3,)), np.zeros(3), "returned an observation outside its observation space: got ndarray of shape (3,) and type float64, expected"),
        (IMAGE, np.zeros((6, 5, 3), np.int64), "returned an observation outside its observation space: got ndarray of shape (6, 5, 3) and type int64, expected"),
        (kinds.Dict(a=TWO, b=kinds.Tuple((TWO, IMAGE))), {"a": 1, "b": (0, np.zeros((6, 5), np.uint8))}, "returned an observation outside its observation space at ['b'][1]: got ndarray of shape (6, 5)"),
        (kinds.Dict(a=TWO), {"A": 1}, "returned an observation outside its observation space at ['a']: got dict without this entry, expected"),
        (TWO, 1.0, "returned an observation outside its observation space: got float of shape () and type float64, expected"),
    ],
)  # fmt: skip
def test_an_observation_of_another_shape_or_type_is_reported(
    space: gym.Space[Any], observation: Any, words: str
) -> None:
    with pytest.raises(ContractViolation, match=f"^{re.escape(words)}"):
        ObservationLayout(space, describe(space, TWO, "X-v0")).check(observation)


def test_lists_and_narrower_types_are_accepted() -> None:
    for space, observation in (
        (kinds.Box(-1, 1, (2,)), [0.5, 1]),
        (kinds.Box(-1, 1, (2,)), np.zeros(2, np.float16)),
        (kinds.MultiBinary(2), np.zeros(2, np.int64)),
        (TWO, np.int32(1)),
    ):
        ObservationLayout(space, describe(space, TWO, "X-v0")).check(observation)


@pytest.mark.parametrize(
    ("space", "value"), [(TWO, 2), (TWO, -1), (kinds.MultiDiscrete([2, 3]), np.array([0, 3])), (kinds.Tuple((TWO,)), (-1,))]
)  # fmt: skip
def test_a_value_out_of_range_is_reported(space: gym.Space[Any], value: Any) -> None:
    layout = ObservationLayout(space, describe(space, TWO, "X-v0"))
    with pytest.raises(ContractViolation, match=r"got .*, expected .*Discrete"):
        layout.row(value, {})
    with pytest.raises(ContractViolation, match=r"got .*, expected .*Discrete"):
        layout.rows(stacked(space, [value]), {})


def test_actions_of_discrete_and_box_spaces() -> None:
    converted = action_converter(kinds.Discrete(3, start=5))(np.array([0, 2]))
    assert converted.tolist() == [5, 7]
    converted = action_converter(BOX)(np.arange(12, dtype=np.float32).reshape(2, 6))
    assert converted.shape == (2, 2, 3)
    assert converted.dtype == np.float64
    actions = np.zeros((2, 1), dtype=np.float32)
    assert not np.shares_memory(action_converter(kinds.Box(-1, 1, (1,)))(actions), actions)  # the history keeps them


def test_action_rows_are_converted_to_structures() -> None:
    space = kinds.Dict(
        {
            "b": kinds.Tuple((BOX, kinds.MultiDiscrete([[2, 3]], start=[[1, 0]]))),
            "a": kinds.Discrete(4, start=-1),
            "c": kinds.Dict(d=kinds.MultiBinary(2), e=kinds.Box(-1, 1, (1,))),
        }
    )
    spaces = describe(BOX, space, "X-v0")
    assert spaces.choices == (4, 2, 3, 2, 2)
    assert (spaces.action_size, spaces.continuous_size, spaces.discrete_actions) == (12, 7, None)
    rows = np.array([[3, 1, 2, 0, 1, *np.linspace(-1, 1, 6), 0.5], [0, 0, 0, 1, 1, *np.zeros(7)]], dtype=np.float32)
    first, second = each_action(action_converter(space)(rows))
    assert space.contains(first)
    assert space.contains(second)
    assert list(first) == ["a", "b", "c"]
    assert first["a"] == 2
    assert np.array_equal(first["b"][0].ravel(), np.linspace(-1, 1, 6, dtype=np.float32))
    assert first["b"][1].tolist() == [[2, 2]]
    assert first["c"]["d"].tolist() == [0, 1]
    assert first["c"]["e"].tolist() == [0.5]
    rows[:] = 9
    assert second["c"]["e"].tolist() == [0]


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (kinds.MultiDiscrete([3], start=[2]), [[3], [4]]),
        (kinds.Tuple((kinds.Discrete(3),)), [(1,), (2,)]),
        (kinds.Dict(a=kinds.Discrete(3)), [{"a": 1}, {"a": 2}]),
    ],
)
def test_a_single_choice_in_a_structure_is_an_integer(space: gym.Space[Any], expected: list[Any]) -> None:
    assert describe(BOX, space, "X-v0").discrete_actions == 3
    converted = each_action(action_converter(space)(np.array([1, 2])))
    assert [action.tolist() if isinstance(action, np.ndarray) else action for action in converted] == expected
