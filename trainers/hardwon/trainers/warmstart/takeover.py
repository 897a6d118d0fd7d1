"""Begin with the roles of another run (`warmstart.run`) in place of a warm start, which takes an hour of one core."""

from pathlib import Path

from hardwon.memory.errors import ConfigError
from hardwon.trainers.checkpoint import find
from hardwon.trainers.config.schema import TrainConfig
from hardwon.trainers.models.adapters import parameters_of
from hardwon.trainers.roles.base import load_weights
from hardwon.trainers.session import Session, read_config

POLICY = "policy"


def check_run(config: TrainConfig) -> str:
    """Check that the policy of `warmstart.run` can be taken over, before anything is played."""
    assert config.warmstart is not None
    assert config.warmstart.run is not None
    run = Path(config.warmstart.run)
    before = read_config(find(run))
    _check_model(config, before, run)
    _check_worlds(config, before, run)
    if before.model.base == config.model.base:
        return ""
    return f"WARNING: the base of {run} is {before.model.base}, and that of this run {config.model.base}; use the same."


def take_over(session: Session) -> None:
    """Give each role that the run has as well its weights in the newest checkpoint of `warmstart.run`.

    `warmstart.run` may also name a checkpoint. The policy of a run is always there.
    """
    assert session.config.warmstart is not None
    read_weights(session, find(Path(session.config.warmstart.run or "")))


def read_weights(session: Session, checkpoint: Path) -> None:
    """Give each role its weights in a checkpoint, if the checkpoint has the role.

    Raises:
        ConfigError: The checkpoint's base has other layers.
    """
    import torch

    for name, role in session.roles.items():
        if not (path := checkpoint / f"{name}.pt").exists():
            continue
        weights = torch.load(path, map_location="cpu", weights_only=True)["state"]["weights"]
        own = parameters_of(role.model, name)
        if [*weights] != [*own] or any(weights[key].shape != value.shape for key, value in own.items()):
            raise ConfigError(
                f"warmstart.run is {checkpoint}, whose base has other layers; set model.base to that of the run."
            )
        load_weights(own, weights)


def _check_model(config: TrainConfig, before: TrainConfig, run: Path) -> None:
    """Check that the weights of a run mean the same in this one."""
    if config.model.base == "tiny":
        raise ConfigError(
            f"warmstart.run is {run} and model.base is tiny, whose vocabulary each run builds itself; use a folder as "
            "the base, or continue the run with --resume."
        )
    for name in ("adapter", "is_compact"):
        own, other = getattr(config.model, name), getattr(before.model, name)
        if own != other:
            setting = "prompt" if name == "is_compact" else name
            raise ConfigError(
                f"warmstart.run is {run}, which differs in model.{setting}; set it as in its config.yaml."
            )


def _check_worlds(config: TrainConfig, before: TrainConfig, run: Path) -> None:
    """Check that the run, and the one that it began with, learned from no task instance that this one evaluates."""
    worlds = (before.tasks.train, before.explore.worlds, *before.library.explored.values())
    learned = {instance for each in worlds for instance in each.all}
    if shared := sorted(learned & {*config.tasks.eval.all}):
        raise ConfigError(
            f"warmstart.run is {run}, which learned from {len(shared)} task instances of tasks.eval, such as "
            f"{shared[0][0]}#{shared[0][1]}; evaluate others."
        )
    if before.warmstart is not None and before.warmstart.run is not None:
        earlier = Path(before.warmstart.run)
        _check_worlds(config, read_config(find(earlier)), earlier)
