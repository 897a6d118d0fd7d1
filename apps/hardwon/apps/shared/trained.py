"""Open trained roles, and a model in a folder, for a command."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hardwon.apps.shared.common import tell
from hardwon.memory.errors import ConfigError, UnknownName, require_extra

if TYPE_CHECKING:
    from hardwon.memory.learning.extraction import Extractor as ReadsEpisodes
    from hardwon.runtime.interfaces.types import Context, Decision, Policy
    from hardwon.trainers.serving import Roles, ServedValue

HELP = "Folder of trained roles, written by `hardwon train --export`."
"""Help of the option `--roles`, which several commands have."""
ExtractorOption = Annotated[
    str | None,
    typer.Option(
        "--extractor",
        help="A chat model that writes lessons in words from each episode, such as openai:gpt-5.",
        show_default="rules write them from counts",
    ),
]
"""The option `--extractor`, which several commands have."""
FOLDER = "folder:"
"""Before the path of a model that plays in this process, as the value of `--policy`."""
AUTO = "auto"
"""The policy for which an agent chooses a strategy for every episode."""
RULES = ("episodic", "lookahead", AUTO, "random")
"""Policies without a language model."""
RANKED, TRAINED = "ranked:", "ranked@"
"""Before the name of a policy whose choices are ranked: by the library's estimates, or by a trained export."""
PULSE_S = 2.0
"""Seconds between two reports within an episode."""


@dataclass(frozen=True, slots=True)
class NoRoles:
    """The roles of a command without `--roles`."""

    policy: None = None
    names: tuple[str, ...] = ()
    guidance: None = None
    extractor: None = None
    admission: None = None
    recall_k: int = 5
    guardrails: bool = True
    planner: None = None


@lru_cache(maxsize=1)
def open_roles(folder: str | Path | None, device: str = "auto") -> "Roles | NoRoles":
    """Load the trained roles of an export once per process. Without a folder there are none."""
    if not folder:
        return NoRoles()
    with require_extra("train"):
        from hardwon.trainers.serving import load_roles

        return load_roles(folder, device=device)


def open_server_roles(folder: str | Path | None, *used: str) -> "Roles | NoRoles":
    """Return the roles of an export, or none without a folder, and say which ones have no use here.

    Without a trained guide there is no guidance: what the export's policy reads is not meant for other policies.
    """
    trained = open_roles(folder)
    if folder is None:
        return trained
    names = ["guide" if name == "guidance" else name for name in used]
    if set(names).isdisjoint(trained.names):
        settings = ", ".join(f"roles.{name}" for name in names)
        raise ConfigError(
            f"{folder} has none of the roles that this command uses: {', '.join(names)}. Train one of {settings}. A "
            "policy works where the agents run."
        )
    tell_unused(folder, trained.names, names)
    return trained if "guide" in trained.names or trained.guidance is None else replace(trained, guidance=None)


def tell_unused(folder: str | Path, names: Sequence[str], used: Sequence[str]) -> None:
    """Say on stderr which roles of an export a command does not use."""
    if unused := [name for name in names if name not in used]:
        tell(f"{folder}: this command does not use the roles {', '.join(unused)} of this export.")


def open_extractor(name: str | None, trained: "ReadsEpisodes | None" = None) -> "ReadsEpisodes | None":
    """Return the extractor that a command names, or the trained one, or None."""
    if name is None:
        return trained
    if trained is not None:
        raise ConfigError(
            f"--extractor is {name!r}, and the folder of --roles has an extractor, too. Give one of them."
        )
    from hardwon.runtime.llm.extractor import as_extractor

    return as_extractor(name)


def open_policy(name: str) -> "Policy":
    """Return the policy that a command names: a built-in one, a chat model, `folder:PATH`, or a ranked one.

    `ranked:NAME` ranks the choices of another policy by the library's estimates, `ranked@EXPORT:NAME` by a trained
    ranker. A model in a folder is loaded once per process; every agent shares it.
    """
    from hardwon.runtime.strategies.components import as_policy

    if name.startswith((RANKED, TRAINED)):
        from hardwon.runtime.policies.ranked import RankedPolicy

        folder, inner = split_ranked(name)
        return RankedPolicy(open_policy(inner), value=_load_ranker(folder) if folder else None)
    return _load_folder(name.removeprefix(FOLDER)) if name.startswith(FOLDER) else as_policy(name)


def open_agent_policy(name: str) -> "Policy | str":
    """Return the policy for an agent that plays alone: also `auto`, which the agent opens by itself."""
    return name if name == AUTO else open_policy(name)


def check_policy(name: str) -> None:
    """Check the name of a policy without loading a model."""
    if name.startswith((RANKED, TRAINED)):
        folder, name = split_ranked(name)
        if folder:
            with require_extra("train"):
                from hardwon.trainers.exports import read_manifest

                read_manifest(Path(folder))
        check_policy(name)
    elif name.startswith(FOLDER):
        from hardwon.trainers.models.pretrained import check_folder

        check_folder(name.removeprefix(FOLDER))
    elif ":" not in name and name not in RULES:
        models = ("PROVIDER:MODEL such as openai:gpt-5", f"{FOLDER}PATH", f"{RANKED}NAME", f"{TRAINED}EXPORT:NAME")
        raise UnknownName.of("policy", name, [*RULES, *models])


def split_ranked(name: str) -> tuple[str, str]:
    """Return the folder of the ranker, empty for the library's estimates, and the name of the policy that is ranked."""
    folder, _, inner = name.removeprefix(TRAINED if name.startswith(TRAINED) else RANKED[:-1]).partition(":")
    if not inner:
        raise ConfigError(f"{name} names no policy to rank. Write {TRAINED}EXPORT:NAME, or {RANKED}NAME.")
    return folder, inner


@lru_cache(maxsize=1)
def _load_ranker(folder: str) -> "ServedValue":
    with require_extra("train"):
        from hardwon.trainers.serving import load_ranker

        return load_ranker(folder)


@lru_cache(maxsize=1)
def _load_folder(folder: str) -> "Policy":
    with require_extra("train"):
        from hardwon.trainers.serving import load_policy

        return load_policy(folder)


class Paced:
    """A policy that takes seconds for a decision, and reports how far its episode is."""

    def __init__(self, inner: "Policy", report: Callable[[int, float], None]) -> None:
        """Wrap a policy."""
        self._inner, self._report = inner, report
        self.name, self.reads = inner.name, inner.reads
        self._decisions, self._seconds, self._last = 0, 0.0, time.monotonic()

    def decide(self, context: "Context") -> "Decision":
        """Return the next action."""
        began = time.monotonic()
        decision = self._inner.decide(context)
        self._count(context, began)
        return decision

    async def adecide(self, context: "Context") -> "Decision":
        """Return the next action asynchronously."""
        began = time.monotonic()
        decision = await self._inner.adecide(context)
        self._count(context, began)
        return decision

    def _count(self, context: "Context", began: float) -> None:
        now = time.monotonic()
        self._decisions, self._seconds = self._decisions + 1, self._seconds + now - began
        if now - self._last >= PULSE_S:
            self._last = now
            self._report(len(context.history) + 1, self._seconds / self._decisions)
