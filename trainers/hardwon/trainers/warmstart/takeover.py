"""Begin with the policy of another run (`warmstart.run`) in place of a warm start, which takes an hour of one core."""

from pathlib import Path

from hardwon.memory.errors import ConfigError
from hardwon.trainers.checkpoint import find
from hardwon.trainers.config.schema import TrainConfig
from hardwon.trainers.models.adapters import parameters_of
from hardwon.trainers.roles.base import load_weights
from hardwon.trainers.session import Session, read_config

POLICY = "policy"


def take_over(session: Session, run: Path) -> None:
    """Give the policy the weights of a run's newest checkpoint, or of a given checkpoint.

    Raises:
        ConfigError: There is no intact checkpoint, its model is another one, or it was trained on task instances that
            this run evaluates.
    """
    import torch

    checkpoint = find(run)
    before = read_config(checkpoint)
    _check_model(session.config, before, run)
    _check_worlds(session.config, before, run)
    weights = torch.load(checkpoint / f"{POLICY}.pt", map_location="cpu", weights_only=True)["state"]["weights"]
    own = parameters_of(session.roles[POLICY].model, POLICY)
    if [*weights] != [*own] or any(weights[name].shape != value.shape for name, value in own.items()):
        raise ConfigError(f"warmstart.run is {run}, whose base has other layers; set model.base to that of the run.")
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
    """Check that the run learned from no task instance that this one evaluates."""
    learned = {*before.tasks.train.all, *before.explore.worlds.all}
    if shared := sorted(learned & {*config.tasks.eval.all}):
        raise ConfigError(
            f"warmstart.run is {run}, which was trained on {len(shared)} task instances of tasks.eval, such as "
            f"{shared[0][0]}#{shared[0][1]}; evaluate others."
        )
