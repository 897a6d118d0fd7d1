"""Define the errands of `hardwon team` and `hardwon bench team`, their members and their admission policies."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hardwon.apps.shared.clone import use_clone
from hardwon.apps.shared.trained import NoRoles
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import UnknownName
from hardwon.runtime import Agent, Environment, EpisodicPolicy, Policy, TextWorldExpress, open_environment
from hardwon.runtime.teams.sharing_policy import AdmitAll, AdmitNone, LogisticAdmission, RuleAdmission, SharingPolicy
from hardwon.runtime.teams.team import Team

if TYPE_CHECKING:
    from hardwon.trainers.serving import Roles

ERRANDS = ("archive", "rooms")
HOUSE = "numLocations=11, includeDoors=1, numDistractorItems=5"
"""Parameters of the game `coin` for the errand `rooms`."""
MAX_STEPS = 80
NO_ROLES = NoRoles()


@dataclass(frozen=True, slots=True)
class Latency:
    """Simulated durations, in seconds."""

    call_s: float = 0.5
    """One search, read or lookup."""
    note_s: float = 0.02
    """One note, which needs no network."""
    think_s: float = 0.05
    """One decision of a member, in place of a model."""

    def get_seconds(self, action: str) -> float:
        """Return the seconds that an action takes: calls are slow; notes and answers are nearly instant."""
        return self.call_s if action.startswith(("search(", "read(", "rate(")) else self.note_s

    def scale(self, factor: float) -> "Latency":
        """Return these durations multiplied by a factor."""
        return Latency(self.call_s * factor, self.note_s * factor, self.think_s * factor)


@dataclass(frozen=True, slots=True)
class Errand:
    """One task for a team: its text, its seed, its environment and its rule-based policies."""

    task: str
    seed: int
    environment: Environment
    member: Callable[[int], Policy]
    """Return the policy of a member, given its number."""


@contextmanager
def open_errand(what: str, seed: int, latency: Latency, *, fold: str = "dev") -> Iterator[Errand]:
    """Open an errand by name; its temporary files are removed on exit."""
    if what in ERRANDS:  # their code is in examples/, which the package does not include
        use_clone(f"The errand {what}")
    if what == "archive":
        from examples.team_tasks.archive import Archive, Clerk

        with TemporaryDirectory(prefix="hardwon-archive-") as folder:
            archive = Archive(Path(folder), seed)
            yield Errand(archive.question, seed, archive.environment(latency), lambda n: Clerk(n, latency))
    elif what == "rooms":
        from examples.team_tasks.scout import Scout
        from examples.team_tasks.slow import Slow

        with closing(Slow(TextWorldExpress("coin", HOUSE), lambda action: latency.call_s, without="close ")) as slow:
            yield Errand(fold, seed, slow, Scout)
    elif ":" in what:
        with closing(open_environment(what)) as own:
            yield Errand("", seed, own, lambda n: EpisodicPolicy())
    else:
        raise UnknownName.of("errand", what, [*ERRANDS, "MODULE:CLASS"])


def open_admission(name: str) -> SharingPolicy:
    """Create an admission policy."""
    plain: dict[str, Callable[[], SharingPolicy]] = {"none": AdmitNone, "all": AdmitAll, "rules": RuleAdmission}
    if name in plain:
        return plain[name]()
    if name.endswith(".json"):
        return LogisticAdmission.load(name)
    if ":" not in name:
        raise UnknownName.of("admission", name, [*plain, "FILE.json", "PROVIDER:MODEL"])
    from hardwon.runtime.teams.chat_roles import ChatAdmission

    return ChatAdmission(name)


def create_members(
    errand: Errand, policies: Sequence[Policy], library: ExperienceLibrary, roles: "Roles | NoRoles" = NO_ROLES
) -> list[Agent]:
    """Create an agent for each policy, each with its own random seed.

    Members neither recall nor record, except for a trained guide and a trained extractor.
    """
    guided = "guide" in roles.names
    return [
        Agent(
            policy,
            library,
            errand.environment,
            learn=roles.extractor is not None,
            withhold=False,
            guardrails=False,
            guidance=roles.guidance if guided else None,
            extractor=roles.extractor,
            recall_k=roles.recall_k if guided else 0,
            max_steps=MAX_STEPS,
            seed=number,
        )
        for number, policy in enumerate(policies)
    ]


def create_team(errand: Errand, numbers: Sequence[int], library: ExperienceLibrary, admission: SharingPolicy) -> Team:
    """Create a team of rule-based members that share steps in the library's file."""
    return Team(
        create_members(errand, [errand.member(number) for number in numbers], library), library.admin.bank, admission
    )
