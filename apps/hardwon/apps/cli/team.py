"""Define `hardwon team`, which runs several agents on one errand at the same time and shows their progress live."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hardwon.apps.shared.common import AsJson, LiteralConsole, excerpt, parse_library, say_json
from hardwon.apps.shared.trained import HELP, NoRoles, open_policy, open_roles, tell_unused

if TYPE_CHECKING:
    from hardwon.runtime.interfaces.types import Policy
    from hardwon.runtime.teams.sharing import TeamEvent
    from hardwon.runtime.teams.sharing_policy import SharingPolicy
    from hardwon.runtime.teams.team import Access, TeamResult

ErrandArgument = Annotated[
    str,
    typer.Argument(
        help="archive (a question for slow tools), rooms (a coin in a house), or MODULE:CLASS of your environment."
    ),
]
"""The environment in which the team works."""


def team(
    errand: ErrandArgument,
    teams: Annotated[
        int, typer.Option("--teams", "-k", min=1, help="Number of members, which work at the same time.")
    ] = 3,
    admission: Annotated[
        str,
        typer.Option(
            help="Policy that selects the shared steps: none, all, rules, FILE.json of bench team, or a chat model."
        ),
    ] = "rules",
    policy: Annotated[
        str,
        typer.Option(help="Policy of the members: rule, a chat model such as openai:gpt-5, or folder:PATH."),
    ] = "rule",
    roles: Annotated[
        Path | None,
        typer.Option(
            help=f"{HELP} The admission replaces --admission, and the policy that of the members; with --library, the "
            "guide advises them, and the extractor reads their episodes.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the task.")] = 0,
    call_s: Annotated[float, typer.Option(min=0, help="Seconds per tool call or action.")] = 0.5,
    everybody: Annotated[
        bool, typer.Option("--all", help="Let every member finish; otherwise the first success ends the run.")
    ] = (False),
    aggregate: Annotated[str, typer.Option(help="How to combine the answers: vote, or best (score).")] = "vote",
    library: Annotated[
        Path | None,
        typer.Option(
            metavar="LIBRARY",
            help="The library that holds the bank, a file or postgresql://USER@HOST/DB.",
            show_default="a temporary file",
            parser=parse_library,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a team of agents on ERRAND and show what they find, share and read, and how the run ends."""
    if aggregate not in ("vote", "best"):
        raise typer.BadParameter(f"--aggregate is {aggregate!r}; use vote or best.")
    how: Literal["vote", "best"] = "vote" if aggregate == "vote" else "best"
    with TemporaryDirectory(prefix="hardwon-team-") as folder, View(teams) as view:
        path = library or Path(folder) / "bank.db"
        result = run_team(
            errand, teams, admission, policy, seed, call_s, path,
            aggregate=how, first=not everybody, view=view, roles=roles, keeps=library is not None,
        )  # fmt: skip
    if as_json:
        say_json(to_json(result))
    else:
        print_result(result)
    if not result.success:
        raise typer.Exit(1)


def run_team(
    errand: str,
    teams: int,
    admission: str,
    policy: str,
    seed: int,
    call_s: float,
    path: Path,
    *,
    aggregate: Literal["vote", "best"] = "vote",
    first: bool = True,
    view: "View | None" = None,
    roles: Path | None = None,
    keeps: bool = True,
) -> "TeamResult":
    """Run a team once."""
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.teams.team import Team

    from . import team_errands
    from .team_errands import Latency

    # Scale all latencies together, so that notes stay cheap in proportion to calls.
    latency = Latency().scale(call_s / Latency().call_s)
    trained = open_roles(roles)
    used = ("policy", "admission", *(("guide", "extractor") if keeps else ()))
    if roles is not None:
        tell_unused(roles, trained.names, used)
    decides: SharingPolicy = trained.admission or team_errands.open_admission(admission)
    with ExperienceLibrary.open(path) as library, team_errands.open_errand(errand, seed, latency) as task:
        policies: list[Policy] = [
            trained.policy or (task.member(number) if policy == "rule" else open_policy(policy))
            for number in range(teams)
        ]
        agents = team_errands.create_members(task, policies, library, trained if keeps else NoRoles())
        watch = view.handle_event if view is not None else lambda event: None
        # A trained policy knows the memory that it is shown; it has never met an action that pulls.
        access: Access = "pull" if trained.policy is None else "show"
        group = Team(agents, library.admin.bank, decides, aggregate=aggregate, first=first, access=access, watch=watch)
        try:
            return group.run(task.task, task.seed)
        finally:
            for agent in agents:
                agent.close()


class View:
    """Live view on stderr with a line per member and the latest events; hidden if stderr is not a terminal."""

    def __init__(self, teams: int) -> None:
        from rich.live import Live

        # The team layer numbers its members "team 1", "team 2", ... and names them so in every event.
        self._now = {f"team {n}": "begins" for n in range(1, teams + 1)}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._last: list[str] = []
        console = LiteralConsole(stderr=True)
        self._live = Live(console=console, get_renderable=self.table, refresh_per_second=8, transient=True)
        self._is_terminal = console.is_terminal

    def handle_event(self, event: "TeamEvent") -> None:
        """Update the view with an event of the run."""
        self._counts[event.team, event.what] += 1
        words = {"pulled": "reads", "own": "reads its own", "finished": "answers", "stopped": "stops:"}
        if event.what in ("step", "pulled", "finished", "stopped"):
            self._now[event.team] = f"{words.get(event.what, '')} {excerpt(event.text, 70)}".strip()
        if event.what in ("shared", "pulled", "finished"):
            self._last.append(f"{event.team} {words.get(event.what, 'shares')} {excerpt(event.text, 80)}")
            del self._last[:-8]

    def table(self) -> Any:
        """Return the current content of the view."""
        from rich.console import Group
        from rich.table import Table

        grid = Table("team", "does", "steps", "shared", "pulled", box=None, pad_edge=False)
        for name, now in self._now.items():
            grid.add_row(name, now, *(str(self._counts[name, what]) for what in ("step", "shared", "pulled")))
        return Group(grid, *self._last)

    def __enter__(self) -> "View":
        if self._is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            self._live.stop()


def to_json(result: "TeamResult") -> dict[str, Any]:
    """Return a run as JSON values: the answers, the decisions, and everything that was shared and read."""
    return {
        "answer": result.answer,
        "success": result.success,
        "score": result.score,
        "first": result.first,
        "seconds": round(result.seconds, 3),
        "calls": result.calls,
        "key_tokens": result.key_tokens,
        "value_tokens": result.value_tokens,
        "admission_ms": round(1000 * result.admission_s / max(1, len(result.shared)), 3),
        "teams": [
            {
                "team": finish.team,
                "answer": finish.answer,
                "success": finish.success,
                "stopped": finish.result is None,
                "seconds": round(finish.seconds, 3),
                "steps": len(finish.result.trajectory.steps) if finish.result else None,
            }
            for finish in result.finishes
        ],
        "shared": [
            {
                "team": step.team,
                "t": step.t,
                "key": step.candidate.key,
                "admitted": step.choice.admit,
                "p": round(step.choice.p, 4),
                "entry": step.entry,
                "used_by": [reader for entry, reader in result.pulls if entry == step.entry],
            }
            for step in result.shared
        ],
        "pulls": result.pulls,
        "own_pulls": result.own_pulls,
    }


def print_result(result: "TeamResult") -> None:
    """Print a summary of a run."""
    from hardwon.apps.shared.common import out, table

    pulls = Counter(reader for _, reader in result.pulls)
    shares = Counter(step.team for step in result.shared if step.choice.admit)
    rows = [
        [
            finish.team,
            "stopped" if finish.result is None else "right" if finish.success else "wrong",
            excerpt(finish.answer, 40) or "-",
            len(finish.result.trajectory.steps) if finish.result else None,
            shares[finish.team],
            pulls[finish.team],
            finish.seconds,
        ]
        for finish in result.finishes
    ]
    columns = ("team", "ended", "answer", "steps", "shared", "pulled", "seconds")
    out().print(table(*columns, rows=rows, numbers=columns[3:]))
    verdict = "right" if result.success else "not right"
    out().print(
        f"\nanswer   {excerpt(result.answer)} ({verdict}), first {result.first or '-'}, {result.seconds:.1f} s\n"
        f"shared   {sum(shares.values())} of {len(result.shared)} steps; {len(result.used)} read by another member\n"
        f"calls    {result.calls} made, {len(result.pulls)} answered by another team\n"
        f"tokens   {result.key_tokens} of keys shown, {result.value_tokens} of values pulled"
    )
