"""Recall from several libraries, of which each episode uses those that were worth it.

    Agent(policy, library, environment, recaller=RoutedRecall(library, {"other": other}))

The agent's own library always answers. Beside it stand other stores: the library of another game or team, or a served
one. An episode that learns goes without a store at random, and its outcome is compared with those of episodes that used
the store. The trajectory's metadata says which (`stores`).
"""

import logging
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from hardwon.memory import Estimate, ExperienceLibrary, Hit, Item, Outcome, Reasons, Recollection, State, Step
from hardwon.memory.errors import ConfigError, HardwonError
from hardwon.memory.records.episodes import read_outcome
from hardwon.runtime.interfaces.extension import Recaller
from hardwon.runtime.interfaces.methods import METHODS

from .episode_tally import EpisodeRow, EpisodeTally
from .holdout import is_withheld
from .tuning import TUNING

logger = logging.getLogger(__name__)


STORES = "stores"
"""Key of an episode's metadata: which stores it used (True) and which it went without."""


_Use = tuple[str, str, bool]
"""An environment, a store, and whether it was used."""


@METHODS.add(
    "R1-Router (routing among stores)",
    "arXiv:2505.22095",
    evidence="C",
    reach='`Agent(..., recaller=RoutedRecall(library, {"other": other}))`, `hardwon run ... --beside OTHER.db`',
    reading="a store is chosen for an episode by its measured worth; the trained router, which writes questions to "
    "stores of three kinds and needs gold answers, is not implemented",
)
class RoutedRecall:
    """Recalls from the agent's own library and from the other stores that improve outcomes.

    R1-Router (arXiv:2505.22095) rewards the choice of a store by 0.5 cosine(question, gold) + 0.5 [store is gold]. Here
    no gold is needed: the worth of a store is the mean outcome of the episodes that used it minus that of the episodes
    that went without it at random. A store is used while its worth is positive or not known yet.
    """

    def __init__(self, library: ExperienceLibrary, stores: Mapping[str, Recaller]) -> None:
        """Create a recaller."""
        for name in stores:
            if not name or ":" in name:
                raise ConfigError(f"the name of a store is {name!r}; use a name without a colon.")
        self._library, self._stores = library, dict(stores)
        self._outcomes = EpisodeTally(library, lambda: defaultdict[_Use, list[float]](list), _add_outcome)

    def choose(self, episode: str, environment: str, *, tries: bool) -> dict[str, bool]:
        """Return for each store whether this episode recalls from it.

        While the worth of a store is not known, every second episode that measures goes without it. Afterwards one in
        ten does the opposite of what the worth says, so that a change is noticed.
        """
        return {name: self._uses(name, episode, environment, tries=tries) for name in sorted(self._stores)}

    def _uses(self, name: str, episode: str, environment: str, *, tries: bool) -> bool:
        worth = self.measure_worth(name, environment)
        if worth is None:
            return not tries or random.Random(f"{episode}:store:{name}").random() < 0.5
        return (worth > 0) != (tries and is_withheld(episode, f"store:{name}"))

    def measure_worth(self, name: str, environment: str) -> float | None:
        """Return the mean outcome with a store minus that without it; None while too few episodes tell."""
        outcomes = self._outcomes.read()
        used, unused = (outcomes.get((environment, name, is_used), []) for is_used in (True, False))
        return fmean(used) - fmean(unused) if min(len(used), len(unused)) >= TUNING.min_routed_episodes else None

    def limit_to(self, chosen: Mapping[str, bool]) -> Recaller:
        """Return a recaller of the own library and the chosen stores."""
        stores = {name: store for name, store in self._stores.items() if chosen.get(name)}
        return MergedRecall(self._library, stores) if stores else self._library


@dataclass(slots=True)
class MergedRecall:
    """Recalls from a library and some stores, and merges the answers. A store that raises an error says nothing."""

    library: Recaller
    stores: Mapping[str, Recaller]
    silent: set[str] = field(default_factory=set)
    """Names of the stores that raised an error."""

    def recall(
        self,
        state_or_text: State,
        *,
        k: int = 5,
        budget_tokens: int | None = None,
        **options: Any,
    ) -> Recollection:
        """Return the merged answers. The budget of tokens is divided among the stores."""
        share = None if budget_tokens is None else budget_tokens // (1 + len(self.stores))

        def ask(recaller: Recaller) -> Recollection:
            return recaller.recall(state_or_text, k=k, budget_tokens=share, **options)

        elsewhere = []
        for name, store in sorted(self.stores.items()):
            try:
                elsewhere.append(_mark(ask(store), name))
            except HardwonError as error:  # the agent's own library answers also while another one is down
                logger.warning("nothing is recalled from %s: %s", name, error)
                self.silent.add(name)
        return merge_recollections(ask(self.library), elsewhere, k)


def _add_outcome(outcomes: dict[_Use, list[float]], row: EpisodeRow) -> None:
    """Add the outcome of an episode to those of every store that it used or went without."""
    stores = row["meta"].get(STORES)
    for name, is_used in stores.items() if isinstance(stores, dict) else ():
        environment = str(row["meta"].get("environment", ""))
        outcomes[environment, name, bool(is_used)].append(read_outcome(row) or 0.0)


def merge_recollections(own: Recollection, elsewhere: Sequence[Recollection], k: int) -> Recollection:
    """Return one recollection: the k best hits of all, by similarity times utility, and combined estimates."""
    everything = [own, *elsewhere]
    estimates = {action: combine_estimates([part.estimates.get(action) for part in everything]) for action in
                 dict.fromkeys(action for part in everything for action in part.estimates)}  # fmt: skip
    outcomes: dict[str, Outcome] = {}
    for part in reversed(everything):  # what the own library saw of an action stands above what others saw
        outcomes.update(part.outcomes)
    return replace(
        own,
        items=_select_best([hit for part in everything for hit in part.items], k),
        steps=_select_best([hit for part in everything for hit in part.steps], k),
        guardrails=tuple(item for part in everything for item in part.guardrails),
        estimates=estimates,
        path=own.path if own.path != "empty" else next((o.path for o in elsewhere if o.path != "empty"), "empty"),
        tokens=sum(part.tokens for part in everything),
        masked=tuple(ref for part in everything for ref in part.masked),
        outcomes=outcomes,
    )


def combine_estimates(parts: Sequence[Estimate | None]) -> Estimate:
    """Return the mean of the estimates, each weighted by its number of steps; the first one gives keys and examples.

    The values of two libraries are on one scale only as far as their rewards are, so the larger evidence counts more.
    """
    given = [part for part in parts if part is not None]
    counted = [part for part in given if part.n] or given
    n = sum(part.n for part in counted)
    value = sum(part.n * part.value for part in counted) / n if n else counted[0].value
    lost = sum(part.n * part.lost for part in counted) / n if n else counted[0].lost
    tried = sum(part.tried for part in given)
    return replace(counted[0], value=value, n=n, tried=tried, context=given[0].context, lost=lost)


def _select_best(hits: Sequence[Hit], k: int) -> tuple[Hit, ...]:
    def weigh(hit: Hit) -> tuple[float, str]:
        utility = hit.what.score if isinstance(hit.what, Item) else 1.0
        return -hit.similarity * utility, repr(hit.what)  # the words decide between equals, not the order of stores

    return tuple(sorted(hits, key=weigh)[:k])


def _mark(recollection: Recollection, store: str) -> Recollection:
    """Return what a store recalled, with ids that name the store, and without ids of steps.

    An id of another library must not get credit for an item or a step of this one.
    """
    return replace(
        recollection,
        items=tuple(replace(hit, what=_mark_origin(hit.what, store)) for hit in recollection.items),
        steps=tuple(replace(hit, what=_mark_origin(hit.what, store)) for hit in recollection.steps),
        guardrails=tuple(replace(item, id=f"{store}:{item.id}") for item in recollection.guardrails),
        estimates={action: replace(estimate, steps=()) for action, estimate in recollection.estimates.items()},
        outcomes={action: replace(outcome, steps=()) for action, outcome in recollection.outcomes.items()},
        masked=(),
    )


def _mark_origin(what: Item | Step, store: str) -> Item | Step:
    if isinstance(what, Item):
        return replace(what, id=f"{store}:{what.id}")
    return replace(what, id=None, why=Reasons())  # its reasons name ids as well
