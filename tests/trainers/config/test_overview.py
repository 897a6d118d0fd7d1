"""The table of algorithms is generated from the cards, and every method has a run in which it acts."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.trainers.config.method_examples import BASE, list_overrides, load_example

from hardwon.memory.errors import UnknownName
from hardwon.trainers import methods, metrics, train
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.config.loading import load, of
from hardwon.trainers.config.methods import find_cards, list_methods
from hardwon.trainers.config.parsing import as_dict, differences
from hardwon.trainers.overview import SECTIONS, format_table, is_fed

ROOT = Path(__file__).parents[3]


def test_the_page_is_generated_from_the_cards():
    """After a change: python -m hardwon.trainers.overview > docs/algorithms.md."""
    assert (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8") == format_table()


def test_every_algorithm_is_fed_and_part_of_a_method():
    assert all(is_fed(card) for cards in list_methods().values() for card in cards)
    assert {card.method for card in CARDS if card.kind != "source"} == {*list_methods()}


def test_every_method_is_one_file():
    """`methods/gigpo.py` holds all parts of gigpo, and every file there is a method."""
    files = {file.stem for file in Path(methods.__path__[0]).glob("*.py")} - {"__init__"}
    assert files == {name.replace("-", "_") for name in list_methods()}
    parts = [card for card in CARDS if card.part is not None and card.kind != "source"]
    assert all(card.part.__module__ == f"{methods.__name__}.{card.method.replace('-', '_')}" for card in parts)


CARDS = [card for _, kind in SECTIONS.values() for card in PARTS.list_cards(kind).values()]
METHODS = [
    pytest.param(card.part, card, id=f"{card.kind}-{card.name}")
    for card in CARDS
    if card.kind not in ("source", "recipe")
]


@pytest.mark.parametrize(("implementation", "card"), METHODS)
def test_a_docstring_names_the_paper_and_the_card_its_evidence(implementation, card):
    """The docstring of the method or of its module has the identifier, or the name where no identifier was verified."""
    text = f"{implementation.__doc__}{sys.modules[implementation.__module__].__doc__}"
    assert card.paper.removeprefix("arXiv:").partition(": ")[0] in text
    assert {*card.evidence.split()} <= {*"CPNAF"}
    assert card.evidence


@pytest.mark.parametrize("card", CARDS)
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


@pytest.mark.parametrize("method", list_methods())
def test_a_method_makes_a_run_use_it(method, root):
    config = load_example(method)
    role = config.roles["policy"]
    used = {role.credit.name, *role.shape, *role.extra, *role.loss.terms, *config.tasks.sampler, *config.tasks.compose}
    for card in find_cards(method):
        assert card.name in used or card.kind == "recipe"
    if any(card.kind == "recipe" for card in find_cards(method)):
        assert differences(load(BASE), load(BASE, method=method))


def test_a_method_keeps_the_settings_that_a_run_has_of_it(root):
    """An estimator replaces the settings of another one, because they have no meaning for it."""
    own = load(BASE, method="arpo")
    assert own.tasks.compose == {"arpo": {}}
    given = {**as_dict(own), "tasks": {**as_dict(own)["tasks"], "compose": {"arpo": {"begun": 0.25}}}}
    assert of(given, method="arpo").tasks.compose == {"arpo": {"begun": 0.25}}
    other = load(BASE, ["roles.policy.credit={name: gigpo, settings: {omega: 0.5}}"])
    assert of(as_dict(other), method="gigpo").roles["policy"].credit.settings["omega"] == 0.5
    assert "omega" not in of(as_dict(other), method="rloo").roles["policy"].credit.settings


def test_an_override_wins_over_a_method(root):
    assert load(BASE, ["roles.policy.loss.high=0.5"], method="loop").roles["policy"].loss.high == 0.5


def test_an_unknown_method_is_refused_with_the_nearest(root):
    with pytest.raises(UnknownName, match="Did you mean 'gigpo'"):
        load(BASE, method="gigp")


@pytest.mark.slow
@pytest.mark.parametrize("method", list_methods())
def test_a_method_is_fed_and_moves_the_policy(method, root, tmp_path):
    """Two iterations: every signal was fed, and the policy made an update."""
    config = load_example(method)
    short = ["run.iterations=2", "eval.every=0", f"run.out={tmp_path / 'run'}", "explore.worlds.seeds=0-9"]
    if config.warmstart is not None:
        short.append("warmstart.learning.updates=20")
    report = train(BASE, [*list_overrides(method), *short], method=method)
    logged = metrics.read(Path(report.out))
    missing = {name: value for line in logged for name, value in line.items() if name.endswith("/missing")}
    assert {name.split("/")[1] for name in missing} == {*config.roles["policy"].sources}
    assert all(value < 1 for value in missing.values()), missing
    assert max(line.get("policy/grad_norm", 0.0) for line in logged) > 0  # an update without tokens is none
    for name in config.roles["policy"].loss.terms:
        assert sum(line.get(f"policy/term/{name}/active", 0) for line in logged) > 0, f"{name} never acted"
    for name in config.tasks.compose:
        composer: Any = PARTS.get("composer", name)
        acted = composer.acted
        assert sum(line.get(f"compose/{acted}", 0) for line in logged) > 0, f"{name} never acted: {acted}"
