"""Settings of runs whose episodes are those of a program: one that the run starts, or one that a proxy has recorded."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hardwon.memory.errors import ConfigError
from hardwon.runtime.interfaces.arms import NO_MEMORY

if TYPE_CHECKING:
    from .schema import TrainConfig

PROGRAM = "program"
"""Name of the environment of such a run."""


@dataclass(frozen=True, kw_only=True)
class ProgramConfig:
    """Episodes of a program of your own, which calls the policy as a model of the OpenAI API."""

    command: str = ""
    """Command that plays one episode, such as `python agent.py`. Its OPENAI_BASE_URL and OPENAI_API_KEY are those of
    the policy, and HARDWON_TASK, HARDWON_SEED and HARDWON_INPUT name the task instance."""
    inputs: str = ""
    """File of JSON lines with the inputs of the task instances: seed N reads line N, from 0. Empty passes only the
    seed."""
    reward: str = ""
    """MODULE:CALLABLE that grades a finished episode. Empty takes the outcome that the program reports."""
    timeout_s: float = 600.0
    """Seconds after which an episode is stopped."""
    at_once: int = 8
    """Episodes that run at the same time."""
    broken: float | None = None
    """Outcome of an episode whose program crashed or was stopped before a grade. null leaves it out and counts it."""
    port: int = 0
    """Port on which the policy answers during rollouts; 0 for any free one. Fix it for a proxy in front of it."""
    urls: dict[str, str] = field(default_factory=dict)
    """Base URL for the program, by arm, if something stands in front of the policy, such as `hardwon proxy`."""
    recorded: str = ""
    """File that `hardwon proxy --tokens` wrote, to learn from instead of starting a program. Seed N is its Nth task."""
    library: str = ""
    """Library of that proxy, which has the outcomes and the grades of its episodes. Empty needs a reward."""

    def __post_init__(self) -> None:
        for name, least in (("timeout_s", 1e-3), ("at_once", 1), ("port", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"program.{name} is {getattr(self, name)}; use {least:g} or more.")
        if self.reward and not all(self.reward.partition(":")):
            raise ConfigError(f"program.reward is {self.reward!r}; write MODULE:CALLABLE, such as rewards:grade.")


def check_program(config: "TrainConfig") -> None:
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


def _check_kind(config: "TrainConfig") -> None:
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


def _check_parts(config: "TrainConfig") -> None:
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
