"""Trial forward passes through user-defined encoders, cores and heads: buffers that training changes, and modules to reject."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lockstep.messages import one_line
from lockstep.models.buffers import persistent_buffers
from lockstep.models.cores import Core
from lockstep.models.layers import seeded
from lockstep.models.policy import Policy
from lockstep.models.registry import Kind, is_registered
from lockstep.models.settings import PolicyConfig

__all__ = ["probe_modules"]

_STEPS, _ROWS = 2, 4
_ALL, _SOME = slice(None), slice(1, 3)
_ROUNDING = 1e-3
"""Largest difference between results that are equal up to rounding, relative to the largest of them."""

Outputs = Sequence[Tensor]
Forward = Callable[[Any, Tensor, tuple[Tensor, ...]], Outputs]
"""Function from a module, features and images to outputs, whose first dimension is that of rows."""


class _NotFinite(Exception):
    """A forward pass returned NaN or infinity."""


class _WrongOutputs(Exception):
    """A forward pass returned something else than tensors of the right shape and type."""


def probe_modules(
    policy: Policy, config: PolicyConfig, features: int, images: Sequence[tuple[int, int, int]], dtype: torch.dtype
) -> list[str]:
    """Try registered (user-defined) encoders, cores and heads, and return the names of the policy's buffers that training changes.

    `features` is the number of features without the mask. Raises ValueError, with a message of one line, for a module that fails, whose
    outputs have a wrong shape or type or are not finite, that would not be trained, whose results would depend on the number of ranks, and
    for a core whose `step` and `sequence` differ.
    """
    widths = policy.encoder_widths(config)
    cores = policy.core, policy.critic_core or policy.core
    head_widths = [width if core is None else core.output_size for core, width in zip(cores, widths, strict=True)]
    inputs = _inputs(max(features, *widths, *head_widths), images, dtype)
    parts: list[tuple[Kind, str, nn.Module | None, Forward, int]] = []
    for path, encoder in (("trunk", policy.trunk), ("critic_trunk", policy.critic_trunk)):
        parts.append(("encoder", path, encoder, _encode, features))
    for path, core, width in zip(("core", "critic_core"), (policy.core, policy.critic_core), widths, strict=True):
        parts.append(("core", path, core, _remember, width))
    heads = {"head_layers": policy.head_layers, "critic_head_layers": policy.critic_head_layers}
    for (path, head), width in zip(heads.items(), head_widths, strict=True):
        parts.append(("head", path, head, _apply, width))
    names = list[str]()
    for kind, path, module, forward, width in parts:
        name = getattr(config, kind)
        if module is not None and is_registered(kind, name):
            probe = _Probe(f"policy.{kind} is {name!r}", module, forward, width, dtype)
            names += [f"{path}.{buffer}" for buffer in probe(inputs)]
            if kind == "core":
                probe.check_steps()
    return names


def _encode(encoder: nn.Module, features: Tensor, images: tuple[Tensor, ...]) -> Outputs:
    return [encoder(features, images)]


def _apply(head: nn.Module, features: Tensor, images: tuple[Tensor, ...]) -> Outputs:
    return [head(features)]


def _remember(core: Core, features: Tensor, images: tuple[Tensor, ...]) -> Outputs:
    state, resets = features.new_zeros(len(features), core.state_size), torch.zeros(_STEPS, len(features)).bool()
    outputs, last = core.sequence(features.repeat(_STEPS, 1, 1), state, resets)
    return [*outputs, last, *core.step(features, state)]  # first what is trained: `step` is for acting


def _step_and_replay(core: Core, features: Tensor, images: tuple[Tensor, ...]) -> Outputs:
    """Return the outputs of steps and the last state, then the same two from `sequence`; two rows begin an episode on the way."""
    rows = torch.stack([features.roll(k, 0) for k in range(_ROWS)])
    resets = torch.zeros(_ROWS, _ROWS).bool()
    resets[1, 0] = resets[2, 1] = True
    _, begin = core.step(features, features.new_zeros(len(features), core.state_size))
    state, stepped = begin, list[Tensor]()
    for row, reset in zip(rows, resets, strict=True):
        output, state = core.step(row, torch.where(reset.unsqueeze(1), 0, state))
        stepped.append(output)
    return [torch.stack(stepped), state, *core.sequence(rows, begin, resets)]


class _Inputs(NamedTuple):
    """Inputs of trial forward passes."""

    numbers: Tensor
    """`[4, W]`, of which a part takes the columns that it needs."""
    images: tuple[Tensor, ...]
    """`[4, C, H, W]` uint8 each."""


def _inputs(width: int, images: Sequence[tuple[int, int, int]], dtype: torch.dtype) -> list[_Inputs]:
    """Return random inputs, ones and zeros: an encoder may take its inputs as indices."""
    generator = torch.Generator().manual_seed(0)
    pixels = tuple(torch.randint(256, (_ROWS, *size), dtype=torch.uint8, generator=generator) for size in images)
    numbers = torch.randn(_ROWS, width, dtype=dtype, generator=generator)
    constants = (torch.ones_like, torch.zeros_like)
    return [_Inputs(numbers, pixels), *(_Inputs(fill(numbers), tuple(map(fill, pixels))) for fill in constants)]


@dataclass
class _ForwardResult:
    """Result of a forward pass: outputs, and buffers after it."""

    outputs: Sequence[Tensor]
    buffers: dict[str, Tensor]
    drew: bool
    """True if it used PyTorch's global generator."""
    has_gradient: bool
    """True if PyTorch can compute the gradient of the first output."""

    def changed(self, before: Mapping[str, Tensor]) -> list[str]:
        """Return the names of the buffers that differ from `before`."""
        names = sorted({*before, *self.buffers})  # sorted: the same order on all ranks
        return [name for name in names if not _bitwise_equal(before.get(name), self.buffers.get(name))]


class _Probe:
    """Trial forward passes through one module; `name` is its name in messages."""

    def __init__(self, name: str, module: nn.Module, forward: Forward, width: int, dtype: torch.dtype) -> None:
        """Create the probe of a module that takes `width` features."""
        self._name = name
        self._module, self._forward, self._width, self._dtype = module, forward, width, dtype
        self._buffers = dict(module.named_buffers())
        self._before = {name: buffer.clone() for name, buffer in self._buffers.items()}
        self._saved = persistent_buffers(module)
        self._accepted: _Inputs | None = None
        """The first inputs from which the module computed finite outputs."""

    def __call__(self, inputs: Sequence[_Inputs]) -> list[str]:
        """Return the names of the buffers that training changes.

        Raises ValueError for a module that computes nothing from any of the inputs, or whose results are not tensors of the right size and
        type, or would depend on the number of ranks.
        """
        self._check_layers()
        failures: list[Exception] = []
        for tried in inputs:
            try:
                self._check_outputs(self._run(tried, True, _ALL).outputs)
                train, again, part = (self._run(tried, True, rows) for rows in (_ALL, _ALL, _SOME))
                evaluation = self._run(tried, False, _ALL)
            except _WrongOutputs as error:
                raise self._error(str(error)) from None
            except Exception as error:  # the module may accept only some of the inputs
                failures.append(error)
            else:
                changed = self._find_changes(train, again, evaluation)
                self._check_rows(train.outputs, part.outputs)
                self._check_gradient(train)
                self._accepted = tried
                return changed
        raise self._failure(failures[0])

    def _check_layers(self) -> None:
        for name, parameter in self._module.named_parameters():
            if not parameter.requires_grad:
                raise self._error(f"its parameter {name!r} requires no gradient; register frozen weights as buffers")
        for name, layer in self._module.named_modules():
            if isinstance(layer, _BatchNorm):
                raise self._error(
                    f"{name or 'it'} is a {type(layer).__name__}, which would compute its statistics over one shard's part of a "
                    "minibatch; use LayerNorm or GroupNorm"
                )

    def _check_outputs(self, outputs: Sequence[Tensor]) -> None:
        """Raise _WrongOutputs if the outputs are not `[4, …]`, of the type of the weights, and the first one `[4, output_size]`."""
        size: Any = self._module.output_size
        shape = tuple(outputs[0].shape)
        if len(shape) == 2 and shape[0] == _ROWS and shape[1] != size:
            raise _WrongOutputs(f"it returns {shape[1]} numbers for each observation, but its output_size is {size}")
        if shape != (_ROWS, size):
            raise _WrongOutputs(
                f"it returns a tensor {[*shape]} for {_ROWS} observations: [{_ROWS}, {size}] was expected"
            )
        for output in outputs:
            if output.dtype != self._dtype:
                found, expected = (str(dtype).removeprefix("torch.") for dtype in (output.dtype, self._dtype))
                raise _WrongOutputs(
                    f"it returns numbers of type {found}: {expected}, the type of the weights, was expected"
                )
            if not output.isfinite().all():
                raise _NotFinite("NaN" if output.isnan().any() else "infinity")

    def _check_rows(self, whole: Sequence[Tensor], part: Sequence[Tensor]) -> None:
        """Raise ValueError unless outputs for some of the inputs are those for all of them, up to rounding."""
        for all_rows, some_rows in zip(whole, part, strict=True):
            if not _close(some_rows, all_rows[_SOME]):
                raise self._error(
                    "its output for one observation depends on the other observations of the batch, so that results would depend on the "
                    "number of ranks; compute every row by itself"
                )

    def _check_gradient(self, result: _ForwardResult) -> None:
        if not result.has_gradient and any(True for _ in self._module.parameters()):
            raise self._error(
                "its output has no gradient, so that its parameters would not be trained; remove detach() and torch.no_grad()"
            )

    def check_steps(self) -> None:
        """Raise ValueError unless the methods `step` and `sequence` of a core compute the same, up to rounding."""
        assert self._accepted is not None
        try:
            *stepped, outputs, last = self._run(self._accepted, False, _ALL, _step_and_replay).outputs
        except _WrongOutputs as error:
            raise self._error(str(error)) from None
        except Exception as error:
            raise self._failure(error) from None
        for expected, found in zip(stepped, (outputs, last), strict=True):
            if expected.shape != found.shape or not _close(found, expected):
                raise self._error(
                    "its methods step and sequence give different results for the same observations; the state must be zeros where `resets` is True"
                )

    def _run(self, tried: _Inputs, training: bool, rows: slice, forward: Forward | None = None) -> _ForwardResult:
        """Run a forward pass of some rows, `forward` or the one that is tried, and restore the mode and the buffers of the module afterwards."""
        mode = self._module.training
        self._module.train(training)
        try:
            # `seeded` holds a lock, so that other threads do not draw meanwhile
            with seeded(torch.Generator().manual_seed(0)), torch.set_grad_enabled(training):
                state = torch.get_rng_state()
                images = tuple(image[rows] for image in tried.images)
                outputs = (forward or self._forward)(self._module, tried.numbers[rows, : self._width], images)
                for output in outputs:
                    if not isinstance(output, Tensor):
                        raise _WrongOutputs(
                            f"its forward pass returns a {type(output).__name__}: a tensor was expected"
                        )
                has_gradient = outputs[0].requires_grad
                outputs = [output.detach().clone() for output in outputs]
                drew = not torch.equal(torch.get_rng_state(), state)
            after = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
            return _ForwardResult(outputs, after, drew, has_gradient)
        finally:
            self._module.train(mode)
            self._restore()

    @torch.no_grad()
    def _restore(self) -> None:
        for name, buffer in self._buffers.items():
            path, _, leaf = name.rpartition(".")
            buffer.copy_(self._before[name])
            setattr(self._module.get_submodule(path), leaf, buffer)

    def _find_changes(self, train: _ForwardResult, again: _ForwardResult, evaluation: _ForwardResult) -> list[str]:
        changed = train.changed(self._before)
        if train.drew or (changed and evaluation.drew):
            raise self._error(
                "it draws from PyTorch's global random generator (dropout, for example), so that results would depend on the "
                "number of ranks; remove the random operation"
            )
        if again.changed(train.buffers) or not all(map(_bitwise_equal, train.outputs, again.outputs)):
            raise self._error(
                "two calls with the same inputs give different results; remove random operations, and keep state in buffers"
            )
        for name in changed:
            self._check_change(name, train.buffers.get(name), evaluation)
        return changed

    def _check_change(self, name: str, after: Tensor | None, evaluation: _ForwardResult) -> None:
        """Raise ValueError if a changed buffer cannot be averaged or saved, or also changes in evaluation mode."""
        before = self._before.get(name)
        if before is None or after is None or before.shape != after.shape:
            raise self._error(
                f"a forward pass changes the shape of its buffer {name!r}; create it with its final shape in the constructor"
            )
        if not before.is_floating_point():
            kind = str(before.dtype).removeprefix("torch.")
            raise self._error(
                f"training changes its buffer {name!r}, of type {kind}, and only floating-point buffers can be averaged over shards"
            )
        if name not in self._saved:
            raise self._error(
                f"training changes its buffer {name!r}, which is not saved; register it with persistent=True"
            )
        if after.requires_grad:
            raise self._error(f"its buffer {name!r} gets a tensor that requires a gradient; detach it")
        if name in evaluation.changed(self._before):
            raise self._error(
                f"its buffer {name!r} changes in evaluation mode too; change it only where self.training is True"
            )

    def _failure(self, error: Exception) -> ValueError:
        if isinstance(error, _NotFinite):
            return self._error(f"its forward pass returns {error} for finite observations")
        failure = self._error(f"its forward pass fails: {type(error).__name__}: {one_line(error)}")
        failure.add_note("".join(traceback.format_exception(error)).rstrip())
        return failure

    def _error(self, reason: str) -> ValueError:
        return ValueError(f"{self._name}: {reason}")


def _close(found: Tensor, expected: Tensor) -> bool:
    """Return True if two tensors are equal up to rounding."""
    tolerance = _ROUNDING * float(expected.nan_to_num().abs().max())
    return torch.allclose(found, expected, rtol=0, atol=tolerance, equal_nan=True)


def _bitwise_equal(first: Tensor | None, second: Tensor | None) -> bool:
    """Compare shape, dtype and bits of two tensors; None equals nothing."""
    if first is None or second is None or first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.equal(*(tensor.detach().reshape(-1).view(torch.uint8) for tensor in (first, second)))  # NaN equals NaN
