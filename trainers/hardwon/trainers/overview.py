"""The table of algorithms, generated from the cards of all parts.

python -m hardwon.trainers.overview > docs/algorithms.md
"""

from collections.abc import Iterator

from hardwon.runtime.interfaces.methods import Method, load_methods

from .algorithms.catalog import PARTS, Card

HEADER = """# Algorithms

Every published algorithm that a training run or an agent can use, with its paper and what feeds it. Generated:
`python -m hardwon.trainers.overview > docs/algorithms.md`.

- **Evidence** names the source that the implementation was checked against: the authors' code (C), the text of the
  paper (P), notes of others (N), the abstract alone (A), a port of others (F). Rows are
  accepted by their formulas: each has a worked example, a degenerate case and an invariance as tests. No row claims the
  results of its paper.
- **Needs** names signals; in brackets are the sources that give them, see [Training](training.md#signals-and-shapers).
- **`--method`** is the name for `hardwon train CONFIG --method NAME`. `hardwon methods NAME` prints what it sets, a
  command in which it acts on the tiny base, and the reading that was chosen where texts differ or are silent.
- [Not verified](#not-verified) lists all parts that no text or code says that could be read.
"""
UNVERIFIED = """## Not verified

Parts of methods that no text or code says that could be read, with the choice of this project, and methods whose
formula was not checked against the paper or the authors' code. Do not expect the results of their papers.

| name | method | formula from | part that was not seen, and the choice |
|---|---|---|---|"""
SECONDARY = {"N": "notes of others", "A": "the abstract", "F": "a port of others"}
"""Evidence other than the authors' code and the text of the paper."""
COLUMNS = ("name", "method", "paper", "evidence", "needs", "--method")
RUNTIME_COLUMNS = ("name", "method", "paper", "evidence", "how to reach it")
SECTIONS: dict[str, tuple[str, str]] = {
    "Estimators": ("`roles.policy.credit.name`", "estimator"),
    "Shapers": ("`roles.policy.shape`, before credit", "shaper"),
    "Loss terms": ("`roles.policy.loss.terms`, beside the surrogate", "term"),
    "Extra examples": ("`roles.policy.extra`", "extra"),
    "Composers": ("`tasks.compose`, the episodes of a group, in rounds", "composer"),
    "Samplers": ("`tasks.sampler`, the order of task instances", "sampler"),
    "Settings": (
        "methods that are settings of `roles.policy`, `warmstart`, `schedule` or `run`, and no code of their own",
        "recipe",
    ),
    "Sources": ("`roles.policy.sources`", "source"),
}


def format_table() -> str:
    """Return the page."""
    return "\n".join([HEADER, *_format_sections(), *_format_methods(), *_format_unverified()])


def _format_unverified() -> Iterator[str]:
    """Yield the rows of the methods of which something could not be verified."""
    yield UNVERIFIED
    for _, kind in SECTIONS.values():
        for _, card in sorted(PARTS.list_cards(kind).items()):
            origins = [] if {"C", "P"} & {*card.evidence} else [SECONDARY[letter] for letter in card.evidence.split()]
            if card.unseen or origins:
                cells = (f"`{card.name}`", card.title, " and ".join(origins) or "-", card.unseen or "-")
                yield f"| {' | '.join(cells)} |"
    yield ""


def _format_methods() -> Iterator[str]:
    """Yield the rows of the runtime's methods, which need no training."""
    yield "## Runtime\n\nmethods of an agent, without training\n"
    yield f"| {' | '.join(RUNTIME_COLUMNS)} |\n{'|---' * len(RUNTIME_COLUMNS)}|"
    yield from (_format_method(method) for _, method in sorted(load_methods().items()))
    yield ""


def _format_method(method: Method) -> str:
    cells = (f"`{method.name}`", method.title, method.paper, method.evidence or "-", method.reach)
    return f"| {' | '.join(cells)} |"


def _format_sections() -> Iterator[str]:
    for title, (setting, kind) in SECTIONS.items():
        yield f"## {title}\n\n{setting}\n"
        if kind == "source":
            yield "| name | gives | what it is |\n|---|---|---|"
            for name, card in sorted(PARTS.list_cards(kind).items()):
                signals = ", ".join(f"`{signal}`" for signal in card.gives)
                yield f"| `{name}` | {signals} | {_summarize(card.part)} |"
        else:
            yield f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"
            yield from (_format_row(card) for _, card in sorted(PARTS.list_cards(kind).items()))
        yield ""


def is_fed(card: Card) -> bool:
    """Return whether every signal that an algorithm needs has a source in this project."""
    return all(PARTS.find_givers(signal) for signal in card.needs)


def _format_row(card: Card) -> str:
    own = [f"`{signal}` ({_list_givers(signal)})" for signal in card.needs]
    needs = ", ".join([*own, *(["solutions (`tasks.demonstrations`)"] if card.demonstrations else [])]) or "-"
    method = f"`{card.method}`" if is_fed(card) else "needs your own source"
    return f"| {' | '.join((f'`{card.name}`', card.title, card.paper, card.evidence or '-', needs, method))} |"


def _list_givers(signal: str) -> str:
    return ", ".join(f"`{name}`" for name in PARTS.find_givers(signal)) or "your own source"


def _summarize(thing: object) -> str:
    """Return the first sentence of a docstring."""
    return " ".join((thing.__doc__ or "").split("\n\n")[0].split())


if __name__ == "__main__":
    print(format_table(), end="")
