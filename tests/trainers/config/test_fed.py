"""Over all parts: what nothing feeds is refused, with the name of everything that would feed it.

Each user is tried in the example of its own, with what feeds it removed.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.trainers.config.method_examples import load_example

from hardwon.memory.errors import CannotLearn, ConfigError
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.config.loading import of
from hardwon.trainers.config.parsing import as_dict
from hardwon.trainers.config.sources import list_settings

ROOT = Path(__file__).parents[3]
PLACES: dict[str, tuple[str, Any]] = {
    "estimator": ("roles.policy.credit.name={}", PARTS.list_cards("estimator")),
    "shaper": ("roles.policy.shape.{}", PARTS.list_cards("shaper")),
    "composer": ("tasks.compose.{}", PARTS.list_cards("composer")),
    "sampler": ("tasks.sampler.{}", PARTS.list_cards("sampler")),
    "extra": ("roles.policy.extra.{}", PARTS.list_cards("extra")),
}
USERS = [
    pytest.param(place.format(name), card, signal, id=f"{kind}-{name}-{signal}")
    for kind, (place, cards) in PLACES.items()
    for name, card in cards.items()
    for signal in card.needs
]
DEMONSTRATED = [
    pytest.param(place.format(name), card, id=f"{kind}-{name}")
    for kind, (place, cards) in PLACES.items()
    for name, card in cards.items()
    if card.demonstrations
]
JUDGED = [name for name, card in PARTS.list_cards("source").items() if "judge" in list_settings(card.part)]


@pytest.fixture(autouse=True)
def root(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))


def read(card) -> dict[str, Any]:
    """The settings in which a card's method acts."""
    return as_dict(load_example(card.method))


@pytest.mark.parametrize(("user", "card", "signal"), USERS)
def test_a_signal_without_a_source_is_refused_with_every_source_of_it(user, card, signal):
    settings = read(card)
    of(settings)
    givers = PARTS.find_givers(signal)
    assert givers
    for name in givers:
        settings["roles"]["policy"]["sources"].pop(name, None)
    if card.kind in ("composer", "sampler"):  # the estimator of the example may need the same signal
        settings["roles"]["policy"]["credit"] = {"name": "arpo" if card.tree else "dr-grpo"}
    with pytest.raises(CannotLearn) as error:
        of(settings)
    assert f"{user} needs the signal {signal}, which nothing feeds" in str(error.value)
    for name in givers:
        assert f"roles.policy.sources.{name}=" in str(error.value)


@pytest.mark.parametrize(("user", "card"), DEMONSTRATED)
def test_demonstrations_without_an_origin_are_refused_with_every_origin(user, card):
    settings = read(card)
    settings["tasks"]["demonstrations"] = []
    with pytest.raises(CannotLearn) as error:
        of(settings)
    assert f"{user} needs successes of the training instances, which nothing feeds" in str(error.value)
    assert "explored, gold, or a JSON file" in str(error.value)


@pytest.mark.parametrize("name", JUDGED)
@pytest.mark.parametrize("judge", [None, "somebody"])
def test_a_source_without_a_judge_is_refused_with_every_kind_of_judge(name, judge):
    settings = read(PARTS.find("source", name))
    own = settings["roles"]["policy"]["sources"][name]
    del own["judge"]
    if judge is not None:
        own["judge"] = judge
    with pytest.raises(ConfigError) as error:
        of(settings)
    assert f"sources.{name}.judge is {'missing' if judge is None else repr(judge)}" in str(error.value)
    for kind in ("policy", "base", "chat:PROVIDER:MODEL", "MODULE:CLASS"):
        assert kind in str(error.value)


@pytest.mark.parametrize("name", PARTS.list_cards("source"))
def test_the_settings_that_a_refusal_names_are_those_that_a_source_must_have(name):
    """`roles.policy.sources.steps={judge: ...}`: with these and no other, the source is taken."""
    card = PARTS.find("source", name)
    settings = read(card)
    own = settings["roles"]["policy"]["sources"].pop(name)
    with pytest.raises(CannotLearn) as error:
        of(settings)
    _, _, rest = str(error.value).partition(f"roles.policy.sources.{name}=")
    named = yaml.safe_load(rest[: rest.index("}") + 1])
    settings["roles"]["policy"]["sources"][name] = {key: own[key] for key in named}
    of(settings)


@pytest.mark.parametrize(("name", "composer"), [("rise", "retry"), ("hbpo", "budgets")])
def test_an_estimator_without_its_composer_is_refused_with_it(name, composer):
    settings = read(PARTS.find("estimator", name))
    del settings["tasks"]["compose"]
    with pytest.raises(CannotLearn, match=rf"nothing feeds it; set tasks\.compose\.{composer}="):
        of(settings)


@pytest.mark.parametrize("name", [name for name, card in PARTS.list_cards("estimator").items() if card.tree])
def test_an_estimator_of_trees_without_a_tree_is_refused_with_every_composer_of_trees(name):
    settings = read(PARTS.find("estimator", name))
    del settings["tasks"]["compose"]
    if not PARTS.find("estimator", name).needs:  # the sources of the example are those of its composer
        settings["roles"]["policy"].pop("sources", None)
    with pytest.raises(CannotLearn, match=r"nothing feeds it; set tasks\.compose to one of (.+)\.") as error:
        of(settings)
    listed = str(error.value).partition("to one of ")[2].rstrip(".").split(", ")
    assert listed == sorted(composer for composer, card in PARTS.list_cards("composer").items() if card.tree)
