"""Trial forward passes through user-defined encoders, cores and heads, to find the buffers they change and noise they draw."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lockstep.models.buffers import persistent_buffers
from lockstep.models.cores import Core
from lockstep.models.layers import seeded
from lockstep.models.policy import Policy
from lockstep.models.registry import is_registered
from lockstep.models.settings import PolicyConfig

__all__ = ["changed_buffers"]

_STEPS, _ROWS = 2, 4

Forward = Callable[[], Sequence[Tensor]]


def changed_buffers(
    policy: Policy, config: PolicyConfig, features: int, images: Sequence[tuple[int, int, int]], dtype: torch.dtype
) -> list[str]:
    """Return the names of the policy's buffers that a forward pass in training mode changes.

    Only registered (user-defined) encoders, cores and heads are tried. `features` is the number of features without the mask.
    Raises ValueError, with a message of one line, for a module whose results would depend on the number of ranks.
    """
    widths = policy.encoder_widths(config)
    generator, names = torch.Generator().manual_seed(0), list[str]()
    pixels = tuple(torch.randint(256, (_ROWS, *size), dtype=torch.uint8, generator=generator) for size in images)

    def encode(module: nn.Module, rows: Tensor) -> Forward:
        return lambda: [module(rows[:, :features], pixels)]

    def remember(module: Core, rows: Tensor, width: int) -> Forward:
        state = rows.new_zeros(_ROWS, module.state_size)
        sequence = rows[:, :width].repeat(_STEPS, 1, 1)
        resets = torch.zeros(_STEPS, _ROWS, dtype=torch.bool)
        return lambda: [*module.sequence(sequence, state, resets), *module.step(rows[:, :width], state)]

    def apply(module: nn.Module, rows: Tensor, width: int) -> Forward:
        return lambda: [module(rows[:, :width])]

    cores = policy.core, policy.critic_core or policy.core
    head_widths = [width if core is None else core.output_size for core, width in zip(cores, widths, strict=True)]
    random_rows = torch.randn(_ROWS, max(features, *widths, *head_widths), dtype=dtype, generator=generator)
    alternatives = random_rows, torch.ones_like(random_rows)  # ones: an encoder may take its features as indices
    for path, encoder in (("trunk", policy.trunk), ("critic_trunk", policy.critic_trunk)):
        if encoder is not None and is_registered("encoder", config.encoder):
            probe = _Probe(f"policy.encoder is {config.encoder!r}", encoder)
            names += [f"{path}.{name}" for name in probe([encode(encoder, rows) for rows in alternatives])]
    for path, core, width in zip(("core", "critic_core"), (policy.core, policy.critic_core), widths, strict=True):
        if core is not None and is_registered("core", config.core):
            probe = _Probe(f"policy.core is {config.core!r}", core)
            names += [f"{path}.{name}" for name in probe([remember(core, rows, width) for rows in alternatives])]
    heads = {"head_layers": policy.head_layers, "critic_head_layers": policy.critic_head_layers}
    for (path, head), width in zip(heads.items(), head_widths, strict=True):
        if is_registered("head", config.head):
            probe = _Probe(f"policy.head is {config.head!r}", head)
            names += [f"{path}.{name}" for name in probe([apply(head, rows, width) for rows in alternatives])]
    return names


@dataclass
class _ForwardResult:
    """Result of a forward pass: outputs, buffers after it; `drew` is True if it used PyTorch's global generator."""

    outputs: Sequence[Tensor]
    buffers: dict[str, Tensor]
    drew: bool

    def changed(self, before: Mapping[str, Tensor]) -> list[str]:
        """Return the names of the buffers that differ from `before`."""
        names = sorted({*before, *self.buffers})  # sorted: the same order on all ranks
        return [name for name in names if not _bitwise_equal(before.get(name), self.buffers.get(name))]


class _Probe:
    """Trial forward passes through one module; `name` is its name in messages."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self._name = name
        self._module = module
        self._buffers = dict(module.named_buffers())
        self._before = {name: buffer.clone() for name, buffer in self._buffers.items()}
        self._saved = persistent_buffers(module)

    def __call__(self, forwards: Sequence[Forward]) -> list[str]:
        """Return the names of the buffers that training changes; all floating-point buffers if every forward pass fails.

        Raises ValueError for a module whose results would depend on the number of ranks.
        """
        for name, parameter in self._module.named_parameters():
            if not parameter.requires_grad:
                raise self._error(f"its parameter {name!r} requires no gradient; register frozen weights as buffers")
        for name, layer in self._module.named_modules():
            if isinstance(layer, _BatchNorm):
                raise self._error(
                    f"{name or 'it'} is a {type(layer).__name__}, which would compute its statistics over one shard's part of a "
                    "minibatch; use LayerNorm or GroupNorm"
                )
        for forward in forwards:
            try:
                train, again = self._run(forward, True), self._run(forward, True)
                evaluation = self._run(forward, False)
            except Exception:
                # the module may not accept such inputs; if it accepts none, training raises the original error
                continue
            width, size = train.outputs[0].shape[-1], self._module.output_size
            if width != size:
                raise self._error(f"it returns {width} numbers for each observation, but its output_size is {size}")
            return self._find_changes(train, again, evaluation)
        return [name for name, buffer in self._saved.items() if buffer.is_floating_point()]

    def _run(self, forward: Forward, training: bool) -> _ForwardResult:
        """Run a forward pass and restore the mode and the buffers of the module afterwards."""
        mode = self._module.training
        self._module.train(training)
        try:
            # `seeded` holds a lock, so that other threads do not draw meanwhile
            with seeded(torch.Generator().manual_seed(0)), torch.set_grad_enabled(training):
                state = torch.get_rng_state()
                outputs = [output.detach().clone() for output in forward()]
                drew = not torch.equal(torch.get_rng_state(), state)
            after = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
            return _ForwardResult(outputs, after, drew)
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

    def _error(self, reason: str) -> ValueError:
        return ValueError(f"{self._name}: {reason}")


def _bitwise_equal(first: Tensor | None, second: Tensor | None) -> bool:
    """Compare shape, dtype and bits of two tensors; None equals nothing."""
    if first is None or second is None or first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.equal(*(tensor.detach().reshape(-1).view(torch.uint8) for tensor in (first, second)))  # NaN equals NaN
