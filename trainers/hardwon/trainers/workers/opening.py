"""The choice of who plays the episodes of a run, made once."""

from hardwon.trainers.config.schema import as_dict

from . import ray_cluster
from .messages import Setup
from .pool import Host, WorkerPool


def open_pool(host: Host) -> WorkerPool | None:
    """Return the workers of the settings, or None if the learner's own process plays.

    Args:
        host: The session whose episodes are played.

    Raises:
        ConfigError: The cluster has too few CPUs.
        EngineUnreachable: The cluster does not answer, or Ray cannot be started here.
        MissingExtra: Ray is not installed.
    """
    config = host.config
    if not config.rollouts.workers:
        return None
    workers, setup = config.rollouts.workers, Setup(as_dict(config), host.tokenizer, host.context)
    return WorkerPool(host, ray_cluster.RayCluster(config.rollouts.ray, workers), setup=setup, workers=workers)
