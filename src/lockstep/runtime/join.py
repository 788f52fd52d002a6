"""Connection of this rank to the others: from a `RankInfo` to a `Runtime`."""

from collections.abc import Collection

from lockstep.group.group import Group
from lockstep.group.network import NetworkGroup, upgrade_to_shared_memory
from lockstep.group.shared import SharedMemoryGroup
from lockstep.group.solo import Solo
from lockstep.processes.portable import check_portable
from lockstep.runtime.checks import shares_memory
from lockstep.runtime.devices import choose_devices, fail_on_all_ranks
from lockstep.runtime.hosts import find_host_slot
from lockstep.runtime.portable_functions import replace_functions
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.runtime import Runtime, TorchRuntime
from lockstep.runtime.settings import RuntimeConfig
from lockstep.runtime.world import World

__all__ = ["join"]


def join(
    rank_info: RankInfo,
    config: RuntimeConfig,
    trainers: Collection[int] | None = None,
    players: Collection[int] | None = None,
) -> Runtime:
    """Connect to the other ranks and return this rank's runtime. `trainers` and `players` None: all ranks.

    `config` is one that `check_runtime` has accepted, with its devices resolved. Raises RankLost if not all ranks
    connect in time. Raises ValueError on rank 0 and SystemExit on all others for problems that appear only after that.
    """
    if config.bits == "portable":
        check_portable()
        replace_functions()
    all_ranks = range(rank_info.size)
    world = World(rank_info, config, _group_class(config))
    try:
        return _create_runtime(
            world, all_ranks if trainers is None else trainers, all_ranks if players is None else players
        )
    except BaseException:
        world.close(failed=True)
        raise


def _group_class(config: RuntimeConfig) -> type[NetworkGroup]:
    if config.kind != "fabric" or shares_memory(config):
        return NetworkGroup
    from lockstep.runtime.fabric import FabricGroup

    return FabricGroup


def _create_runtime(world: World, trainers: Collection[int], players: Collection[int]) -> Runtime:
    rank_info, config = world.rank_info, world.config
    group = _fastest_group(world)
    host_slot = find_host_slot(group)
    group.set_core_count(host_slot.host_cores)
    devices = choose_devices(rank_info, config, group, host_slot, trainers, players)
    if config.kind == "fabric":
        from lockstep.runtime.fabric import FabricRuntime

        return FabricRuntime(world, group, devices, host_slot)
    return TorchRuntime(world, group, devices, host_slot)


def _fastest_group(world: World) -> Group:
    """Create the fastest group that `runtime.backend` allows."""
    rank_info, config = world.rank_info, world.config
    if rank_info.size == 1:
        return Solo()
    if rank_info.memory is not None and shares_memory(config):
        return SharedMemoryGroup(rank_info.memory, rank_info.rank, rank_info.size, config.timeout)
    network = world.connect()
    if not shares_memory(config):
        return network
    group = upgrade_to_shared_memory(network, config.timeout)
    if group is network and config.backend == "shared":
        fail_on_all_ranks(
            rank_info, "runtime.backend is 'shared': the ranks can't open each other's memory; use auto or gloo"
        )
    return group
