"""What teams are sent on: a question to an archive, or a coin in a house; members by rule or by a chat model.

Shared by `hardwon team` and `hardwon bench team`. Nothing here measures or prints.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hardwon.apps.shared.clone import use_clone
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import UnknownName
from hardwon.runtime import Agent, Environment, EpisodicPolicy, Policy, TextWorldExpress, open_environment
from hardwon.runtime.teams.sharing_policy import Admission, AdmitAll, AdmitNone, LogisticAdmission, RuleAdmission
from hardwon.runtime.teams.team import Team

ERRANDS = ("archive", "rooms")
HOUSE = "numLocations=11, includeDoors=1, numDistractorItems=5"
"""Parameters of the game `coin` in which scouts look for the coin."""
MAX_STEPS = 80


@dataclass(frozen=True, slots=True)
class Latency:
    """How long things take, in seconds."""

    call_s: float = 0.5
    """A search, a reading, a look-up."""
    note_s: float = 0.02
    """A note: nothing goes over the network."""
    think_s: float = 0.05
    """A decision of the clerk: a model's time."""

    def of(self, action: str) -> float:
        """Of an action: calls wait, notes and answers hardly do."""
        return self.call_s if action.startswith(("search(", "read(", "rate(")) else self.note_s

    def times(self, factor: float) -> "Latency":
        """All of them so many times as long."""
        return Latency(self.call_s * factor, self.note_s * factor, self.think_s * factor)


@dataclass(frozen=True, slots=True)
class Errand:
    """One task: its words, its seed, an environment, and who goes by rule."""

    task: str
    seed: int
    environment: Environment
    member: Callable[[int], Policy]
    """The policy of a member, by its number."""


@contextmanager
def errand(what: str, seed: int, latency: Latency, *, fold: str = "dev") -> Iterator[Errand]:
    """An errand by its name, archive, rooms or MODULE:CLASS; its files are gone afterwards. Raises UnknownName."""
    if what in ERRANDS:
        use_clone(f"The errand {what}")
    if what == "archive":
        from examples.team_tasks.archive import Archive, Clerk

        with TemporaryDirectory(prefix="hardwon-archive-") as folder:
            archive = Archive(Path(folder), seed)
            yield Errand(archive.question, seed, archive.environment(latency), lambda n: Clerk(n, latency))
    elif what == "rooms":
        from examples.team_tasks.scout import Scout
        from examples.team_tasks.slow import Slow

        slow = Slow(TextWorldExpress("coin", HOUSE), lambda action: latency.call_s, without="close ")
        yield Errand(fold, seed, slow, Scout)
        slow.close()
    elif ":" in what:
        own = open_environment(what)
        yield Errand("", seed, own, lambda n: EpisodicPolicy())
        own.close()
    else:
        raise UnknownName.of("errand", what, [*ERRANDS, "MODULE:CLASS"])


def open_admission(name: str) -> Admission:
    """none, all, rules, a file that `hardwon bench team` wrote, or a chat model such as openai:gpt-5-mini."""
    plain: dict[str, Callable[[], Admission]] = {"none": AdmitNone, "all": AdmitAll, "rules": RuleAdmission}
    if name in plain:
        return plain[name]()
    if name.endswith(".json"):
        return LogisticAdmission.load(name)
    if ":" not in name:
        raise UnknownName.of("admission", name, [*plain, "FILE.json", "PROVIDER:MODEL"])
    from hardwon.runtime.teams.chat_roles import ChatAdmission

    return ChatAdmission(name)


def members(errand: Errand, policies: Sequence[Policy], library: ExperienceLibrary) -> list[Agent]:
    """An agent for each policy, with chance of its own."""
    return [
        Agent(
            policy,
            library,
            errand.environment,
            learn=False,
            guardrails=False,
            recall_k=0,
            max_steps=MAX_STEPS,
            seed=number,
        )
        for number, policy in enumerate(policies)
    ]


def team_of(errand: Errand, numbers: Sequence[int], library: ExperienceLibrary, admission: Admission) -> Team:
    """The members of these numbers, by rule, sharing in the library's file."""
    return Team(members(errand, [errand.member(number) for number in numbers], library), library.bank, admission)
