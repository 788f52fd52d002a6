"""Tests of compiled kernels against the same formulas run operation by operation, and of the cache of kernels."""

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.compiling.doubled import Doubled
from tests.warm import Warm
from tests.watched import CONTINUOUS, COUNT, DISCRETE, PLAIN, STEPS, agent_of, rollouts_of

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import RowLayout
from lockstep.algorithm.gradient import GradientFormula
from lockstep.algorithm.loss import LOSS_SCALARS, Loss
from lockstep.algorithm.update import Update
from lockstep.compiling import build as build_module
from lockstep.compiling import cache as kernel_cache
from lockstep.compiling import kernels, products
from lockstep.compiling.build import CompilerFailed, build_missing
from lockstep.compiling.cache import cache_folder
from lockstep.compiling.kernels import ahead_of_time, compiled_together
from lockstep.compiling.rewrites import rewrites
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.spaces import Spaces
from lockstep.group.solo import Solo
from lockstep.models.settings import PolicyConfig
from lockstep.ppo.formula import StepFormula
from lockstep.ppo.settings import PPOConfig

pytestmark = pytest.mark.slow

ROWS = 24
CARTPOLE = Spaces(4, (2,), np.zeros(0, np.float32), np.zeros(0, np.float32))
MASKED = Spaces(3 + 5, (3, 2), np.float32([-1]), np.float32([1]), mask_size=5)


SMALL = {"hidden": (16,), "feature_size": 8, "combine": "two-heads", "gamma": 0.9, "share": 0.5}


def formula_of(
    spaces,
    dtype: torch.dtype,
    policy: PolicyConfig,
    config: PPOConfig,
    curiosity: CuriosityConfig = PLAIN,
    count: int = ROWS,
) -> tuple[GradientFormula, tuple]:
    """Create a gradient formula and its arguments: weights, rows and the scalars of the loss."""
    agent = Agent(spaces, policy, False, 1, dtype, curiosity=curiosity)
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(count, agent.layout.width, dtype=dtype, generator=generator)
    mask = rows[:, spaces.feature_size : spaces.observation_size]
    mask.copy_(mask > 0)
    for column, options in enumerate(spaces.choices):
        drawn = torch.randint(options, (count,), generator=generator)
        rows[:, spaces.observation_size + column] = drawn.to(dtype)
        if spaces.mask_size:
            mask[torch.arange(count), sum(spaces.choices[:column]) + drawn] = 1
    log_probs = RowLayout.scalars(rows).log_probs
    log_probs.copy_(-log_probs.abs())
    rows[:, -1] = 1
    rows[3] = 0  # a reset row
    scalars = dict(zip(LOSS_SCALARS, (0.1, 0.8, 0.2, 0.01, 0.7), strict=True))
    return GradientFormula(Loss(agent, config, (True, True))), (
        agent.flat.buffer + 0.1 * torch.randn(len(agent.flat.buffer), dtype=dtype, generator=generator),
        rows,
        torch.tensor([*scalars.values()], dtype=dtype),
    )


CASES = {
    "cartpole": (CARTPOLE, torch.float32, PolicyConfig(), PPOConfig(entropy=0.01), PLAIN, 256),
    "discrete": (DISCRETE, torch.float32, PolicyConfig(hidden=(16, 16)), PPOConfig(entropy=0.01)),
    "continuous": (
        CONTINUOUS,
        torch.float32,
        PolicyConfig(hidden=(16,), shared=True, activation="silu"),
        PPOConfig(value_clip=0.2, normalize_advantages=False),
    ),
    "large": (DISCRETE, torch.float32, PolicyConfig(hidden=(64, 64)), PPOConfig(), CuriosityConfig("rnd"), 520),
    "masked": (
        MASKED,
        torch.float32,
        PolicyConfig(hidden=(16,), value_hidden=(24, 8), activation="gelu"),
        PPOConfig(entropy=0.01),
    ),
    "beta": (CONTINUOUS, torch.float32, PolicyConfig(hidden=(16,), distribution="beta"), PPOConfig(entropy=0.01)),
    "state std": (
        CONTINUOUS,
        torch.float32,
        PolicyConfig(hidden=(16,), distribution="gaussian-state-std"),
        PPOConfig(),
    ),
    "beta in float64": (
        CONTINUOUS,
        torch.float64,
        PolicyConfig(hidden=(16,), distribution="beta", head_hidden=(8,)),
        PPOConfig(entropy=0.01),
    ),
    "float64": (CONTINUOUS, torch.float64, PolicyConfig(hidden=(16, 16)), PPOConfig(surrogate="kl")),
    **{
        kind: (spaces, torch.float32, PolicyConfig(hidden=(16,)), PPOConfig(), CuriosityConfig(kind, **SMALL))
        for kind, spaces in (("icm", CONTINUOUS), ("rnd", DISCRETE), ("ngu", DISCRETE), ("disagreement", CONTINUOUS))
    },
    "icm and beta in float64": (
        CONTINUOUS,
        torch.float64,
        PolicyConfig(hidden=(16,), shared=True, activation="silu", distribution="beta"),
        PPOConfig(surrogate="kl", value_clip=0.2, normalize_advantages=False),
        CuriosityConfig("icm", **SMALL),
    ),
}
SIMILAR = (
    "discrete",
    "continuous",
    "large",
    "beta",
    "state std",
    "beta in float64",
    "masked",
    "float64",
    "icm",
    "rnd",
    "ngu",
    "disagreement",
)
"""Compiled like one of the others. Each takes a quarter of a minute. The kernel of "cartpole" is that of the preset, which other tests use too."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.exhaustive) if case in SIMILAR else case for case in CASES],
)
def test_compiled_gradient_equals_autograd(case: str) -> None:
    formula, arguments = formula_of(*CASES[case])
    weights = formula.loss.agent.flat.buffer  # compiled with other weights than it is called with, as in training
    (plain,), (compiled,) = formula(*arguments), ahead_of_time(formula, (weights, *arguments[1:]))(*arguments)
    assert plain.abs().max() > 0.1
    bound = 1e-6 if plain.dtype == torch.float32 else 1e-12
    assert (compiled - plain).abs().max() <= bound * plain.abs().max()


@pytest.mark.parametrize("parts", [pytest.param((40,), marks=pytest.mark.exhaustive), (25, 15)])
def test_compiled_step_equals_the_formula(parts: tuple[int, ...]) -> None:
    size, generator = sum(parts), torch.Generator().manual_seed(3)
    weights, first, total = (torch.randn(size, generator=generator) for _ in range(3))
    total = torch.cat([total, torch.ones(5)])
    numbers = torch.tensor([24, 0.5, 1, 1e-2, 3, *([0, 0, 1] if len(parts) == 2 else [])])
    arguments = (weights, first, first.square(), total, numbers)
    formula = StepFormula(parts, 1e-5, len(parts))
    for plain, compiled in zip(formula(*arguments), ahead_of_time(formula, arguments)(*arguments), strict=True):
        assert (compiled - plain).abs().max() <= 1e-6
    if len(parts) == 2:  # the part without a step keeps its bits
        moved, *_ = ahead_of_time(formula, arguments)(*arguments)
        assert torch.equal(moved[parts[0] :], weights[parts[0] :])
        assert not torch.equal(moved[: parts[0]], weights[: parts[0]])


def test_rewrites_compute_the_same_functions() -> None:
    x = torch.cat([torch.linspace(-12, 12, 100_001), torch.logspace(-30, 0, 1000)])
    exact, table = x.double().tanh(), rewrites(own_products=False)
    rewritten = table[torch.ops.aten.tanh.default](x).double()
    assert ((rewritten - exact).abs() <= 4e-7 * exact.abs()).all()
    assert not table[torch.ops.aten.tanh.default](torch.tensor([math.nan])).isfinite().any()
    generator = torch.Generator().manual_seed(4)
    product, with_bias = table[torch.ops.aten.mm.default], table[torch.ops.aten.addmm.default]
    for rows, columns in ((30, 1), (30, 3), (2, 30)):
        left, right = torch.randn(rows, 7, generator=generator), torch.randn(7, columns, generator=generator)
        assert torch.allclose(product(left, right), left @ right, atol=1e-6)
        assert torch.allclose(with_bias(right[0], left, right), right[0] + left @ right, atol=1e-6)
    assert product(torch.zeros(30, 7), torch.zeros(7, 30)) is NotImplemented


@pytest.mark.parametrize(
    ("vendor", "threads", "portable", "own"),
    [
        ("AuthenticAMD", 1, False, True),
        ("AuthenticAMD", 2, False, False),
        ("GenuineIntel", 1, False, False),
        ("GenuineIntel", 2, True, True),
    ],
)
def test_own_products_are_used_where_they_are_faster_or_must_be_portable(
    vendor: str, threads: int, portable: bool, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    information = SimpleNamespace(exists=lambda: True, read_text=lambda: f"vendor_id : {vendor}")
    monkeypatch.setattr(products, "Path", lambda path: information)
    monkeypatch.setattr(products, "portable_problem", lambda: None)
    monkeypatch.setattr(products, "is_portable", lambda: portable)
    monkeypatch.setattr(products, "_is_amd", products._is_amd.__wrapped__)  # not the cached result
    assert products.uses_products(threads) == own


def test_own_products_compute_the_same_functions() -> None:
    generator = torch.Generator().manual_seed(5)
    left, right = torch.randn(130, 50, generator=generator), torch.randn(50, 70, generator=generator)
    table = rewrites(own_products=True)
    product, with_bias = table[torch.ops.aten.mm.default], table[torch.ops.aten.addmm.default]
    assert torch.allclose(product(left, right), left @ right, atol=1e-4)
    assert torch.allclose(with_bias(right[0], left, right), right[0] + left @ right, atol=1e-4)
    assert with_bias(right[0], left, right, beta=2) is NotImplemented


def test_library_is_compiled_once_per_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    built: list[str] = []
    start = build_module._Build
    monkeypatch.setattr(
        build_module, "_Build", lambda library, *others: (built.append(library.stem), start(library, *others))[1]
    )
    example = (torch.ones(3),)
    key, announced = kernels._key(Doubled("once"), example), []
    for _ in range(2):
        kernel = ahead_of_time(Doubled("once"), example, announce=lambda: announced.append(key in built))
        assert torch.equal(kernel(torch.tensor([1.0, 2, 3]))[0], torch.tensor([2.0, 4, 6]))
    assert built.count(key) == 1
    assert announced == [False], "it must be announced once, before it is compiled"
    keys = {kernels._key(*arguments) for arguments in (
        (Doubled("once"), example), (Doubled("other"), example), (Doubled("once"), (torch.ones(4),)),
        (Doubled("once"), (torch.ones(3, dtype=torch.float64),)),
    )}  # fmt: skip
    assert len(keys) == 4


def test_kernels_of_a_block_are_compiled_at_its_end_and_later_ones_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    announced: list[int] = []
    number = torch.tensor([1.0, 2, 3])
    with compiled_together(announce=lambda: announced.append(1)) as make:
        kernels_of_block = [make(Doubled(salt), (number,)) for salt in ("one", "two", "one")]
        assert not announced
    assert announced == [1]
    later = make(Doubled("three"), (number,))
    assert announced == [1, 1]
    for kernel in (*kernels_of_block, later):
        assert kernel(number)[0].tolist() == [2, 4, 6]
    names = {"one", "two", "three"}
    assert {path.stem for path in tmp_path.glob("*.so")} >= {kernels._key(Doubled(name), (number,)) for name in names}


def test_a_block_without_kernels_needs_neither_a_cache_nor_a_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A rank that only plays may be on a host without a compiler."""
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    with compiled_together():
        pass
    assert not (tmp_path / "cache").exists()


def test_key_contains_all_inputs_of_a_gradient_formula() -> None:
    spaces, dtype, policy, config = CASES["discrete"]

    def key(spaces=spaces, policy: PolicyConfig = policy, config: PPOConfig = config, trained=(True, True)) -> str:
        formula, arguments = formula_of(spaces, dtype, policy, config)
        return kernels._key(replace(formula, loss=replace(formula.loss, trained=trained)), arguments)

    others = [
        *(
            key(config=replace(config, **setting))
            for setting in ({"surrogate": "kl"}, {"value_clip": 0.1}, {"value_clip": 0.2})
        ),
        *(
            key(config=replace(config, **setting))
            for setting in ({"value_coefficient": 1.0}, {"normalize_advantages": False})
        ),
        *(
            key(policy=replace(policy, **setting))
            for setting in ({"activation": "relu"}, {"hidden": (16,)}, {"shared": True})
        ),
        *(key(trained=trained) for trained in ((True, False), (False, True))),
        *(key(spaces=other) for other in (CONTINUOUS, MASKED, replace(MASKED, mask_size=0))),
    ]
    assert len({key(), *others}) == 1 + len(others)
    irrelevant = (
        {"learning_rate": 1.0},
        {"clip": 0.3},
        {"entropy": 0.5},
        {"gamma": 0.5},
        {"kl_coefficient": 3.0},
        {"epochs": 9},
    )
    assert {key(config=replace(config, **setting)) for setting in irrelevant} == {key()}


@pytest.mark.parametrize(
    "settings",
    [
        {"kl_stop": 1e-6, "value_learning_rate": 1e-3, "epochs": 3},
        {"policy_epochs": 1, "value_epochs": 3},
        {"policy_epochs": 3, "value_epochs": 1, "kl_stop": 1e-6},
    ],
    ids=["stopped", "critic only", "policy only"],
)
def test_no_kernel_is_compiled_during_training(settings: dict[str, object]) -> None:
    agent, compiled, training = agent_of(), [], []

    def make(formula, examples):
        name = type(formula).__name__
        compiled.append(name)
        assert not training, f"{name} is compiled during training"
        return formula

    config = PPOConfig(minibatches=2, learning_rate=1e-2, **settings)
    update = Update(agent, config, Solo(), range(2), 1, make_kernel=make)
    update.make_kernels(STEPS * COUNT)
    training.append(True)
    assert compiled
    for iteration in (1, 2):
        update(rollouts_of(agent, 2), iteration, 0.0)


@pytest.fixture(name="compiling")
def fixture_compiling(warm: Warm, environ: dict[str, str], tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Return `compiling(salt, **variables)`, which starts `tests.compiling.doubled` with a cache in `tmp_path`."""
    environ |= {"LOCKSTEP_CACHE": str(tmp_path / "cache")}

    def start(salt: str, **variables: str) -> "subprocess.Popen[str]":
        return warm.begin(salt, cwd=tmp_path, environ=environ | variables, module="tests.compiling.doubled")

    return start


def test_processes_wait_for_a_concurrent_compilation(compiling) -> None:
    outputs = [process.communicate() for process in [compiling("shared") for _ in range(2)]]
    assert [out for out, _ in outputs] == ["[2.0, 2.0, 2.0]\n"] * 2, outputs
    assert sorted(bool(err) for _, err in outputs) == [False, True], "one of the two compiles"


def test_output_of_a_killed_compilation_is_not_used(compiling, tmp_path: Path) -> None:
    process = compiling("killed")
    while not list(tmp_path.glob("cache/building-*/*")):
        time.sleep(0.05)
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not list(tmp_path.glob("cache/*.so"))
    (tmp_path / "tmp").mkdir()
    out, err = compiling("killed", TMPDIR=str(tmp_path / "tmp")).communicate(timeout=250)
    assert out == "[2.0, 2.0, 2.0]\n", err
    (library,) = tmp_path.glob("cache/*.so")
    files = {path.name for path in (tmp_path / "cache").iterdir()}
    assert files == {library.name, f"{library.stem}.json", f"lock-{library.name[0]}", "probes"}
    probes = [path for path in (tmp_path / "cache" / "probes").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in probes) < 2**20
    assert not list((tmp_path / "tmp").iterdir()), "the compiler must not keep its own cache of 300 MB"


def test_unusable_cache_folder_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(
        CompilerFailed, match=r"^runtime.compile is 'on': the cache folder .* can't be created \(Not a directory\); set"
    ):
        ahead_of_time(Doubled("nowhere"), (torch.ones(3),))


def test_instruction_sets_are_tested_after_a_compiler_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "attempts").touch()

    def compiled(formula: object, examples: object, folder: Path, threads: int, vec_isa_ok: bool | None) -> Path:
        with (tmp_path / "attempts").open("a") as attempts:  # a file, because this runs in another process
            attempts.write(f"{vec_isa_ok} ")
        if vec_isa_ok:
            raise RuntimeError("unrecognized command-line option '-mamx-tile'")
        (folder / "library").touch()
        return folder / "library"

    monkeypatch.setattr(kernels, "_compiled", compiled)
    library = tmp_path / "a.so"
    build_missing({library: partial(kernels._compile, Doubled("old"), ())}, kernel_cache.find_defect, lambda: None)
    assert (tmp_path / "attempts").read_text() == "True None "
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.so", "attempts", "lock-a"]


def test_compiler_failure_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    monkeypatch.setitem(kernels._OPTIONS, "cpp.cxx", (None, "false"))
    with pytest.raises(CompilerFailed, match=r"the compilation failed, see .*failure\.log") as caught:
        ahead_of_time(Doubled("failed"), (torch.ones(3),))
    assert len(str(caught.value).splitlines()) == 1
    assert (cache_folder() / "failure.log").read_text()
    assert not list(cache_folder().glob("building-*"))
