"""The table of algorithms is generated from the registries, and every row that works has an example that runs."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from hardwon.trainers import metrics, train
from hardwon.trainers.algorithms.composers import COMPOSERS
from hardwon.trainers.config.schema import load
from hardwon.trainers.overview import SECTIONS, format_table, is_fed

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples" / "algorithms").glob("*.yaml"))


def test_the_page_is_generated_from_the_registries():
    """After a change: python -m hardwon.trainers.overview > docs/algorithms.md."""
    assert (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8") == format_table()


def test_every_algorithm_that_works_has_an_example():
    registries = [registry for _, registry in SECTIONS.values() if registry.kind != "source"]
    cards = [card for registry in registries for card in registry.cards.values()]
    assert {card.example for card in cards if is_fed(card)} == {path.stem for path in EXAMPLES}


METHODS = [
    pytest.param(registry[name], card, id=f"{card.kind}-{name}")
    for _, registry in SECTIONS.values()
    for name, card in registry.cards.items()
    if card.kind not in ("source", "recipe")
]


@pytest.mark.parametrize(("implementation", "card"), METHODS)
def test_a_docstring_names_the_paper_and_the_card_its_evidence(implementation, card):
    """The docstring of the method or of its module has the identifier, or the name where no identifier was verified."""
    text = f"{implementation.__doc__}{sys.modules[implementation.__module__].__doc__}"
    assert card.paper.removeprefix("arXiv:").partition(": ")[0] in text
    assert {*card.evidence.split()} <= {*"CPNAF"}
    assert card.evidence


@pytest.mark.parametrize("card", [card for _, registry in SECTIONS.values() for card in registry.cards.values()])
def test_what_was_not_seen_is_listed_in_one_place(card):
    """A reading is a choice between texts; parts that no text has are in the list of the page."""
    assert not re.search(r"not (seen|found)", card.reading)
    listed = format_table().partition("## Not verified")[2]
    is_second_hand = card.kind != "source" and not {"C", "P"} & {*card.evidence}
    assert (f"| `{card.name}` | {card.title} |" in listed) == bool(card.unseen or is_second_hand)


@pytest.fixture
def root(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_uses_what_it_is_named_after(path, root):
    config = load(path)
    role = config.roles["policy"]
    used = {role.credit.name, *role.shape, *role.extra, *role.loss.terms, *config.tasks.sampler, *config.tasks.compose}
    names = {
        name for _, registry in SECTIONS.values() for name, card in registry.cards.items() if card.example == path.stem
    }
    assert names & used or path.stem in (
        "loop",
        "flow-grpo",
        "turn-ratio",
        "aepo-clip",
        "scaling-inter",
        "relex",
        "step-filter",
        "step",
        "seeupo",
        "go-explore",
        "hi-agent",
        "echotrail",
        "b-star",
    )
    assert config.run.out == f"runs/{path.stem}"


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_fed_and_moves_the_policy(path, root, tmp_path):
    """Two iterations: every signal was fed, and the policy made an update."""
    short = ["run.iterations=2", "eval.every=0", f"run.out={tmp_path / 'run'}"]
    if load(path).warmstart is not None:
        short.append("warmstart.learning.updates=20")
    report = train(path, [*short, "explore.worlds.seeds=0-9"])
    logged = metrics.read(Path(report.out))
    missing = {name: value for line in logged for name, value in line.items() if name.endswith("/missing")}
    assert {name.split("/")[1] for name in missing} == {*load(path).roles["policy"].sources}
    assert all(value < 1 for value in missing.values()), missing
    assert max(line["policy/grad_norm"] for line in logged) > 0
    for name in load(path).roles["policy"].loss.terms:
        assert sum(line.get(f"policy/term/{name}/active", 0) for line in logged) > 0, f"{name} never acted"
    for name in load(path).tasks.compose:
        composer: Any = COMPOSERS[name]
        acted = composer.acted
        assert sum(line.get(f"compose/{acted}", 0) for line in logged) > 0, f"{name} never acted: {acted}"
