"""Check the settings of runs whose episodes are those of a program that the run starts."""

from hardwon.memory.errors import ConfigError
from hardwon.runtime.interfaces.arms import NO_MEMORY

from .schema import ProgramConfig, TrainConfig

PROGRAM = "program"
"""Name of the environment of such a run."""


def check_program(config: TrainConfig) -> None:
    """Check that a run of a program names one, and nothing that needs an environment of its own."""
    program = config.program
    if config.environment.name != PROGRAM:
        if program != ProgramConfig():
            raise ConfigError(
                f"program is set, and environment.name is {config.environment.name!r}; set environment.name={PROGRAM}."
            )
        return
    if not program.command:
        raise ConfigError("environment.name is program, which needs program.command, the program to start.")
    if config.model.is_compact:
        raise ConfigError(
            f"model.base is {config.model.base!r}, whose prompts are content words, and a program sends chat messages; "
            "set model.base to the folder or the hub name of a chat model."
        )
    for arm in program.urls:
        if arm not in config.arms:
            raise ConfigError(f"program.urls.{arm} names no arm; there are {', '.join(config.arms)}.")
    _check_parts(config)


def _check_parts(config: TrainConfig) -> None:
    """Check that nothing asks for an environment, which a program does not have."""
    more = [name for name in config.roles if name != "policy"]
    guided = [arm for arm in config.arms if config.get_guidance(arm) != NO_MEMORY]
    answers = config.policy
    demands = {
        f"roles.{''.join(more[:1])}": bool(more),
        "warmstart": config.warmstart is not None,
        "tasks.compose": bool(config.tasks.compose),
        "rollouts.workers": bool(config.rollouts.workers),
        "roles.policy.extra": bool(config.roles["policy"].extra),
        "roles.policy.settings.speech": answers.speech != "none",
        "roles.policy.settings.history": answers.history is not None,
        "roles.policy.settings.actions": answers.actions != "full",
    }
    for name, is_asked in demands.items():
        if is_asked:
            raise ConfigError(
                f"{name} needs an environment that the run steps, and a program plays by itself; remove it."
            )
    if guided:
        raise ConfigError(
            f"arms.{guided[0]} shows {config.get_guidance(guided[0])}, and the run does not write a program's prompts. "
            f"Set guidance.{guided[0]}=none and program.urls.{guided[0]} to a `hardwon proxy` in front of the policy."
        )
