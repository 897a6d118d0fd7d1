"""Settings that count only together with another one: given without it they would change nothing, so they are refused.

engine.folder is 'DIR', which only engine.url reads; set that, or remove engine.folder.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from hardwon.memory.errors import ConfigError

from .kinds import RECALLS
from .policy import PolicySettings
from .roles import RoleConfig
from .schema import TrainConfig


@dataclass(frozen=True, slots=True)
class Group:
    """Settings of one section that something reads, or nothing."""

    path: str
    section: Any
    """The section with its values: an object, or a mapping of those that were given."""
    names: tuple[str, ...]
    is_read: bool
    switch: str
    """What has to be set for them to be read."""


def check_unused(config: TrainConfig) -> None:
    """Check that something reads every setting that differs from its default."""
    for group in _list_groups(config):
        for name in () if group.is_read else group.names:
            if _is_given(group.section, name):
                value = group.section[name] if isinstance(group.section, Mapping) else getattr(group.section, name)
                path = f"{group.path}.{name}"
                raise ConfigError(
                    f"{path} is {value!r}, and nothing reads it without {group.switch}; set that, or remove {path}."
                )


def _is_given(section: Any, name: str) -> bool:
    """Return whether a setting differs from its default; a given value of 0 turns it off."""
    if isinstance(section, Mapping):
        return bool(section.get(name))
    (field,) = (each for each in fields(section) if each.name == name)
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return bool(getattr(section, name) != default)


def _list_groups(config: TrainConfig) -> Iterator[Group]:
    """Yield the settings that depend on others."""
    yield from _list_engine(config)
    rollouts = config.rollouts
    yield Group("rollouts", rollouts, ("max_lag",), rollouts.workers > 0, "rollouts.workers above 0")
    tasks, library = config.tasks, config.library
    shows = bool(tasks.compose or config.roles["policy"].extra)
    yield Group("tasks", tasks, ("demonstrations",), shows, "tasks.compose or roles.policy.extra")
    filled = ("explored", "learn", "evolve_every")
    yield Group("library", library, filled, config.uses_library, "an arm that shows the library or a role's text")
    recalls = any(config.get_guidance(arm) in RECALLS for arm in config.arms)
    recall_settings = ("withhold", "guardrails", "planner")
    yield Group("library", library, recall_settings, recalls, "an arm with recall, such as arms.retrieved=4")
    for name, role in config.roles.items():
        yield from _list_role(f"roles.{name}", role)
    reads_chat = not config.model.is_compact
    if config.warmstart is not None:
        yield Group(
            "warmstart.examples", config.warmstart.examples, ("renamed",), reads_chat, "a base that reads messages"
        )
    yield from _list_own_settings(config)


def _list_engine(config: TrainConfig) -> Iterator[Group]:
    engine = config.engine
    yield Group("engine", engine, ("folder",), engine.url is not None, "engine.url")


def _list_role(path: str, role: RoleConfig) -> Iterator[Group]:
    """Yield the settings of the loss and the optimizer of any role."""
    loss, learner = role.loss, role.learner
    ratios = ("ratio", "low", "high", "old")
    yield Group(f"{path}.loss", loss, ratios, loss.kind != "imitation", f"a {path}.loss.kind with ratios, such as ppo")
    yield Group(f"{path}.loss", loss, ("max_mismatch",), loss.old == "trainer", f"{path}.loss.old=trainer")
    constant = learner.denominator == "constant"
    yield Group(f"{path}.learner", learner, ("constant",), constant, f"{path}.learner.denominator=constant")


def _list_own_settings(config: TrainConfig) -> Iterator[Group]:
    """Yield the settings that only one kind of role has."""
    roles = {name: role.settings for name, role in config.roles.items()}
    path, policy = "roles.policy.settings", roles["policy"]
    spoken = policy.get("speech", PolicySettings.speech) != "none"
    yield Group(path, policy, ("speech_tokens",), spoken, f"a kind of {path}.speech, such as free")
    if (extractor := roles.get("extractor")) is not None:
        path = "roles.extractor.settings"
        yield from _list_supervised(path, extractor)
        yield Group(path, extractor, ("teacher",), extractor.get("distil", 0) > 0, f"{path}.distil above 0")
    if (admission := roles.get("admission")) is not None:
        yield from _list_supervised("roles.admission.settings", admission)
    if (guide := roles.get("guide")) is not None:
        path = "roles.guide.settings"
        distils = config.model.is_compact or guide.get("says") == "recalled"
        base = f"a base that is made here (model.base=tiny), or {path}.says=recalled"
        yield Group(path, guide, ("distil",), distils, base)
        distils = distils and guide.get("distil") != 0
        yield Group(path, guide, ("distil_lr", "distil_batch"), distils, f"{path}.distil above 0 with {base}")


def _list_supervised(path: str, settings: Mapping[str, Any]) -> Iterator[Group]:
    """Yield the settings of a stage 1 that is off unless it is asked for."""
    yield Group(path, settings, ("distil_lr", "distil_batch"), settings.get("distil", 0) > 0, f"{path}.distil above 0")
