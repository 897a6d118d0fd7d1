"""The choice of who plays the episodes of a run, made once."""

import sys
from pathlib import Path

from hardwon.trainers.config.schema import as_dict
from hardwon.trainers.engines.factory import read_api_key

from . import ray_cluster
from .messages import Setup
from .pool import Host, WorkerPool


def open_pool(host: Host) -> WorkerPool | None:
    """Return the workers of the settings, or None if the learner's own process plays."""
    config = host.config
    if not config.rollouts.workers:
        return None
    workers = config.rollouts.workers
    cluster = ray_cluster.RayCluster(workers)
    return WorkerPool(host, cluster, setup=build_setup(host), workers=workers)


def build_setup(host: Host) -> Setup:
    """Return what the workers of a session are started with."""
    paths = tuple(str(Path(path).absolute()) for path in sys.path)  # an empty one is the current folder
    key = None if host.config.engine.url is None else read_api_key()
    return Setup(as_dict(host.config), host.tokenizer, host.context, paths, key)
