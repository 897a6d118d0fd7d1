"""Check the settings of runs whose episodes are those of a program: one that the run starts, or a recorded one."""

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
    if bool(program.command) == bool(program.recorded):
        raise ConfigError(
            "environment.name is program, which needs either program.command, the program to start, or "
            "program.recorded, a file of `hardwon proxy --tokens`."
        )
    if config.model.is_compact:
        raise ConfigError(
            f"model.base is {config.model.base!r}, whose prompts are content words, and a program sends chat messages; "
            "set model.base to the folder or the hub name of a chat model."
        )
    _check_kind(config)
    _check_parts(config)


def _check_kind(config: TrainConfig) -> None:
    """Check the settings that only one of the two kinds reads."""
    program, default = config.program, ProgramConfig()
    unread: tuple[str, ...] = ("library",)
    if program.recorded:
        unread = ("inputs", "timeout_s", "at_once", "broken", "port", "urls")
        if config.eval.every:
            raise ConfigError(
                f"eval.every is {config.eval.every}, and recorded episodes evaluate no new weights; set eval.every=0."
            )
        if not (program.library or program.reward):
            raise ConfigError("program.recorded has no outcomes: set program.library or program.reward.")
        if len(config.arms) > 1:
            raise ConfigError(f"arms are {', '.join(config.arms)}, and recorded episodes have one; keep control alone.")
    for name in unread:
        if getattr(program, name) != getattr(default, name):
            other = "program.command" if program.recorded else "program.recorded"
            raise ConfigError(f"program.{name} is {getattr(program, name)!r}, which only {other} reads; remove it.")
    for arm in program.urls:
        if arm not in config.arms:
            raise ConfigError(f"program.urls.{arm} names no arm; there are {', '.join(config.arms)}.")


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
