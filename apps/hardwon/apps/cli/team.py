"""`hardwon team`: several agents on one errand at the same time, and a live view of who does what."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hardwon.apps.shared.common import AsJson, excerpt, say_json

if TYPE_CHECKING:
    from hardwon.runtime.teams.sharing import Event
    from hardwon.runtime.teams.team import TeamResult

LINES = 8
"""Last events that the live view shows."""


def team(
    errand: Annotated[
        str,
        typer.Argument(
            help="archive: a question to slow tools; rooms: a coin in a house; or MODULE:CLASS of your own environment."
        ),
    ],
    teams: Annotated[int, typer.Option("--teams", "-k", min=1, help="Members that work at the same time.")] = 3,
    admission: Annotated[
        str,
        typer.Option(help="Who decides what is shared: none, all, rules, FILE.json of bench team, or a chat model."),
    ] = "rules",
    policy: Annotated[str, typer.Option(help="The members: by rule, or a chat model such as openai:gpt-5.")] = "rule",
    seed: Annotated[int, typer.Option(min=0, help="Which task.")] = 0,
    call_s: Annotated[float, typer.Option(min=0, help="Seconds that a call of a tool, or an action, takes.")] = 0.5,
    everybody: Annotated[bool, typer.Option("--all", help="Let every member finish; else the first success ends.")] = (
        False
    ),
    aggregate: Annotated[str, typer.Option(help="Whose answer counts: vote, or best (score).")] = "vote",
    library: Annotated[Path | None, typer.Option(help="The library whose file holds the bank; else a new one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Send a team on ERRAND: who finds what, who shares it, who pulls it, and how it ends."""
    if aggregate not in ("vote", "best"):
        raise typer.BadParameter(f"--aggregate is {aggregate!r}; use vote or best.")
    how: Literal["vote", "best"] = "vote" if aggregate == "vote" else "best"
    with TemporaryDirectory(prefix="hardwon-team-") as folder, View(teams) as view:
        path = library or Path(folder) / "bank.db"
        result = go(errand, teams, admission, policy, seed, call_s, path, aggregate=how, first=not everybody, view=view)
    if as_json:
        say_json(as_plain(result))
    else:
        told(result)
    if not result.success:
        raise typer.Exit(1)


def go(
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
) -> "TeamResult":
    """One run of a team. Raises UnknownName for an errand or admission that does not exist."""
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.agent import as_policy
    from hardwon.runtime.teams.team import Team

    from . import team_errands
    from .team_errands import Latency

    latency = Latency().times(call_s / Latency().call_s)
    decides = team_errands.open_admission(admission)
    with ExperienceLibrary.open(path) as library, team_errands.errand(errand, seed, latency) as asked:
        policies = [asked.member(number) if policy == "rule" else as_policy(policy) for number in range(teams)]
        agents = team_errands.members(asked, policies, library)
        watch = view.heard if view is not None else lambda event: None
        sent = Team(agents, library.bank, decides, aggregate=aggregate, first=first, watch=watch)
        try:
            return sent.run(asked.task, asked.seed)
        finally:
            for agent in agents:
                agent.close()


class View:
    """The live view, on stderr: a line for each team, and the last that happened; nothing where nobody looks."""

    def __init__(self, teams: int) -> None:
        from rich.console import Console
        from rich.live import Live

        self._now = {f"team {n}": "begins" for n in range(1, teams + 1)}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._last: list[str] = []
        console = Console(stderr=True, markup=False, highlight=False, emoji=False)
        self._live = Live(console=console, get_renderable=self.table, refresh_per_second=8, transient=True)
        self._looked_at = console.is_terminal

    def heard(self, event: "Event") -> None:
        """Something happened."""
        self._counts[event.team, event.what] += 1
        words = {"pulled": "reads", "own": "reads its own", "finished": "answers", "stopped": "stops:"}
        if event.what in ("step", "pulled", "finished", "stopped"):
            self._now[event.team] = f"{words.get(event.what, '')} {excerpt(event.text, 70)}".strip()
        if event.what in ("shared", "pulled", "finished"):
            self._last.append(f"{event.team} {words.get(event.what, 'shares')} {excerpt(event.text, 80)}")
            del self._last[:-LINES]

    def table(self) -> Any:
        """What is shown."""
        from rich.console import Group
        from rich.table import Table

        made = Table("team", "does", "steps", "shared", "pulled", box=None, pad_edge=False)
        for name, now in self._now.items():
            made.add_row(name, now, *(str(self._counts[name, what]) for what in ("step", "shared", "pulled")))
        return Group(made, *self._last)

    def __enter__(self) -> "View":
        if self._looked_at:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._looked_at:
            self._live.stop()


def as_plain(result: "TeamResult") -> dict[str, Any]:
    """A run as JSON: everything that was decided, shared and pulled."""
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
                "team": one.team,
                "t": one.t,
                "key": one.candidate.key,
                "admitted": one.choice.admit,
                "p": round(one.choice.p, 4),
                "entry": one.entry,
                "used_by": [reader for entry, reader in result.pulls if entry == one.entry],
            }
            for one in result.shared
        ],
        "pulls": result.pulls,
        "own_pulls": result.own_pulls,
    }


def told(result: "TeamResult") -> None:
    """A run in words."""
    from hardwon.apps.shared.common import out, table

    pulls = Counter(reader for _, reader in result.pulls)
    shares = Counter(one.team for one in result.shared if one.choice.admit)
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
        f"shared   {sum(shares.values())} of {len(result.shared)} steps, {len(result.used)} of them pulled\n"
        f"calls    {result.calls} made, {len(result.pulls)} answered by another team\n"
        f"tokens   {result.key_tokens} of keys shown, {result.value_tokens} of values pulled"
    )
