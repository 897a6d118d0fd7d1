"""The index of demonstrations of a library: what its successes did, and where things were found.

A planner without a model binds a success to a new task and searches for what is not in view. For that it needs the
demonstrations (the newest successes), which words are names of things, which forms of actions move, prepare or reveal,
and how often each kind of thing was seen at each kind of location. All of it is counted from steps, for each
environment on its own: see `filed_demonstrations`.

Whether demonstrations help is measured: agents that learn withhold them in some episodes, and outcomes are compared.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hardwon.memory.records import Step
from hardwon.memory.situations.actions import ParsedAction, parse_action
from hardwon.memory.situations.phrases import FUNCTION_WORDS, head_noun, words

from .tuning import TUNING

KEPT = 500
"""Number of episodes, the newest ones, that are counted anew to leave out those of one task instance."""
INSTANCES = 64
"""Number of task instances whose indexes without them are kept; more are counted anew when they are asked for."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """The actions of one success that do more than move or prepare, in order."""

    id: str
    """Id of the episode."""
    task: str
    actions: tuple[str, ...]
    length: int
    """Number of all actions of the episode."""


@dataclass(frozen=True, slots=True)
class CountedEpisode:
    """What one episode adds to an index of demonstrations."""

    id: str
    task: str
    outcome: float
    seed: int | None
    split: str
    trial: Any
    kept: tuple[tuple[str, str], ...]
    length: int
    things: frozenset[str]
    counts: Counter[str]
    arrived: Counter[str]
    local: Counter[str]
    revealed: Counter[str]
    sightings: frozenset[tuple[str, str]]
    """Pairs of a kind of location and a kind of thing that was seen there."""


class DemonstrationIndex:
    """Demonstrations, names, forms of actions and places of things, counted episode by episode."""

    def __init__(self) -> None:
        self._episodes: deque[tuple[str, str, tuple[tuple[str, str], ...]]] = deque(maxlen=TUNING.demonstrations)
        """(id, task, (action, location) pairs of the actions that did not move) of the newest successes."""
        self._lengths: dict[str, int] = {}
        self.things: set[str] = set()
        """Heads of the arguments of all actions."""
        self._task_words: set[str] = set()
        self._solved_words: set[str] = set()
        """Words of the tasks of successes."""
        self._failed_words: set[str] = set()
        """Words of the tasks of failures that followed a demonstration."""
        self._heads: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        """By form and number of an argument: its heads in successes."""
        self._named: tuple[str, frozenset[tuple[str, int]]] | None = None
        """A task, and the arguments that most successes of tasks worded like it name."""
        self._counts: Counter[str] = Counter()
        self._arrived: Counter[str] = Counter()
        """Steps by form that led to the location that their last argument names."""
        self._local: Counter[str] = Counter()
        """Steps by form whose only argument was the location."""
        self._revealed: Counter[str] = Counter()
        """Steps by form after which new things could be acted on, or old ones in new ways; see `_opens`."""
        self._seen: Counter[tuple[str, str]] = Counter()
        """Episodes by (kind of thing, kind of location) in which the one was seen at the other."""
        self._sightings: Counter[str] = Counter()
        """The same, by kind of location."""
        self._total: Counter[str] = Counter()
        """The same, by kind of thing."""
        self._trials: deque[tuple[str, bool, float]] = deque(maxlen=TUNING.compared_trials)
        """(task, whether demonstrations were followed, its outcome) of the episodes that measured them."""
        self._counted: deque[CountedEpisode] = deque(maxlen=KEPT)
        self._instances: set[tuple[str, int | None]] = set()
        """Split and seed of all episodes, also of those that were counted too long ago to be counted anew."""
        self._without: dict[tuple[str, int], DemonstrationIndex] = {}
        """By task instance, the index of demonstrations without its episodes."""

    @property
    def size(self) -> int:
        """Return the number of steps that were counted."""
        return self._counts.total()

    def add(
        self,
        episode: str,
        task: str,
        steps: Sequence[Step],
        *,
        outcome: float,
        trial: Any = None,
        seed: int | None = None,
        split: str = "",
    ) -> None:
        """Count one episode."""
        counted = _count_episode(episode, task, steps, outcome=outcome, trial=trial, seed=seed, split=split)
        self._counted.append(counted)
        self._instances.add((split, seed))
        self._without.clear()
        self._merge(counted)

    def leave_out(self, split: str, seed: int) -> "DemonstrationIndex":
        """Return the index of the newest episodes without those of a task instance. Do not change it."""
        own = {(split, seed), ("", seed)}
        if own.isdisjoint(self._instances):
            return self
        if (split, seed) not in self._without:
            rest = DemonstrationIndex()
            for episode in [*self._counted]:
                if (episode.split, episode.seed) not in own:
                    rest._merge(episode)
            while len(self._without) >= INSTANCES:
                del self._without[next(iter(self._without))]
            self._without[split, seed] = rest
        return self._without[split, seed]

    def _merge(self, episode: CountedEpisode) -> None:
        """Add the counts of one episode."""
        if episode.trial in ("followed", "withheld"):
            self._trials.append((episode.task, episode.trial == "followed", episode.outcome))
        if episode.trial == "followed" and episode.outcome < 0.5:
            self._failed_words.update(words(episode.task))
        self._named = None
        self._task_words.update(words(episode.task))
        self.things.update(episode.things)
        self._counts.update(episode.counts)
        self._arrived.update(episode.arrived)
        self._local.update(episode.local)
        self._revealed.update(episode.revealed)
        for kind, thing in episode.sightings:
            self._seen[thing, kind] += 1
            self._sightings[kind] += 1
            self._total[thing] += 1
        if episode.outcome >= 0.5 and episode.kept:
            self._solved_words.update(words(episode.task))
            for action, _ in episode.kept:
                for argument, head in _list_arguments(action):
                    self._heads[argument].add(head)
            self._episodes.append((episode.id, episode.task, episode.kept))
            self._lengths[episode.id] = episode.length

    def is_way(self, form: str) -> bool:
        """Return whether most steps of this form led to the location that they name.

        A step in a direction moves too, but it does not say where it leads, so a search cannot choose by it.
        """
        return 2 * self._arrived[form] > self._counts[form]

    def reveals(self, form: str) -> float:
        """Return the share of the steps of this form that made something new possible without moving."""
        return self._revealed[form] / self._counts[form] if self._counts[form] else 0.0

    def is_fixed(self, form: str, number: int) -> bool:
        """Return whether an argument was of one kind in all successes."""
        return len(self._heads[form, number]) == 1

    def is_named(self, form: str, number: int, task: str) -> bool:
        """Return whether most successes of tasks worded like this one named this argument, if only once.

        Otherwise, a name there is a coincidence.
        """
        if self._named is None or self._named[0] != task:
            counts = defaultdict[tuple[str, int], list[bool]](list)
            for _, other, kept in self._list_alike(self.list_frame(task)):
                heads = defaultdict[tuple[str, int], set[str]](set)
                for argument, head in (pair for action, _ in kept for pair in _list_arguments(action)):
                    heads[argument].add(head)
                for argument, kinds in heads.items():
                    counts[argument].append(not kinds.isdisjoint(words(other)))
            self._named = task, frozenset(key for key, named in counts.items() if 2 * sum(named) >= len(named))
        return (form, number) in self._named[1]

    def likelihood(self, thing: str, kind: str) -> float:
        """Return the share of the sightings of a kind of thing that were at a kind of location."""
        everything = self._sightings.total()
        common = self._sightings[kind] / everything if everything else 0.0
        return (self._seen[thing, kind] + TUNING.prior_sightings * common) / (
            self._total[thing] + TUNING.prior_sightings
        )

    def list_names(self, task: str) -> tuple[str, ...]:
        """Return the words of a task that name things, in order: those of actions, and those that no task had."""
        return tuple(
            word
            for word in dict.fromkeys(words(task))
            if word in self.things or (word not in self._task_words and word not in FUNCTION_WORDS)
        )

    def list_frame(self, task: str) -> frozenset[str]:
        """Return the words of a task that do not name things."""
        return frozenset(words(task)) - frozenset(self.list_names(task)) - FUNCTION_WORDS

    def list_unsolved(self, task: str) -> frozenset[str]:
        """Return the words of a task that name no things and were in tasks that failed although a demonstration led.

        Words that were in the task of any success are left out.
        """
        return self.list_frame(task) & self._failed_words - self._solved_words

    def list_demonstrations(self, task: str) -> list[Demonstration]:
        """Return the demonstrations, those whose task is worded most alike first.

        The words that name no things count first, then the names in common, then the shorter demonstration.
        """
        frame, names = self.list_frame(task), set(self.list_names(task))
        rows = []
        for episode, other, kept in self._episodes:
            likeness = _compare_frames(frame, self.list_frame(other))
            common = len(names.intersection(self.list_names(other)))
            actions = tuple(action for action, _ in kept if not self._is_preparation(action))
            if actions:
                rows.append((-likeness, -common, self._lengths[episode], episode, other, actions))
        return [
            Demonstration(episode, other, actions, length) for _, _, length, episode, other, actions in sorted(rows)
        ]

    def list_needed(self, task: str) -> frozenset[str]:
        """Return the forms of action that nearly all successes of tasks worded like this one used.

        A plan that lacks one of them cannot be complete, for example because it acts on things that no task names.
        """
        alike = self._list_alike(self.list_frame(task))
        uses = Counter[str]()
        for _, _, kept in alike:
            uses.update({parse_action(action).template for action, _ in kept if not self._is_preparation(action)})
        return frozenset(form for form, count in uses.items() if count >= TUNING.needed_share * len(alike))

    def _list_alike(self, frame: frozenset[str]) -> list[tuple[str, str, tuple[tuple[str, str], ...]]]:
        """Return the successes of tasks that are worded alike."""
        return [
            episode
            for episode in self._episodes
            if _compare_frames(frame, self.list_frame(episode[1])) >= TUNING.min_common_words
        ]

    def are_worse(self, task: str) -> bool:
        """Return whether tasks worded like this one succeeded clearly more often without demonstrations."""
        total = sum(followed for _, followed, _ in self._trials)
        if min(total, len(self._trials) - total) < TUNING.min_trials:  # the usual case, and a cheap one
            return False
        frame = self.list_frame(task)
        outcomes: dict[bool, list[float]] = {True: [], False: []}
        for other, followed, outcome in self._trials:
            if _compare_frames(frame, self.list_frame(other)) >= TUNING.min_common_words:
                outcomes[followed].append(outcome)
        if min(map(len, outcomes.values())) < TUNING.min_trials:
            return False
        # Means with one success and one failure added, so that a few equal outcomes do not seem certain.
        means = {which: (sum(won) + 1) / (len(won) + 2) for which, won in outcomes.items()}
        error: float = sum(means[which] * (1 - means[which]) / (len(won) + 3) for which, won in outcomes.items()) ** 0.5
        return means[False] - means[True] > TUNING.demonstration_doubt * error

    def _is_preparation(self, action: str) -> bool:
        """Return whether an action is of a form that only handles the location, such as opening it."""
        form = parse_action(action).template
        return 2 * self._local[form] > self._counts[form]


def _count_episode(
    episode: str, task: str, steps: Sequence[Step], *, outcome: float, trial: Any, seed: int | None, split: str
) -> CountedEpisode:
    """Return what one episode adds to an index of demonstrations."""
    counts, arrived, local, revealed = (Counter[str]() for _ in range(4))
    things: set[str] = set()
    seen = _list_things(steps[0].admissible) if steps else set()
    for t, step in enumerate(steps):
        parsed = parse_action(step.action)
        moved = step.post.location != step.pre.location
        following = steps[t + 1].admissible if t + 1 < len(steps) else ()
        counts[parsed.template] += 1
        arrived[parsed.template] += moved and parsed.slots[-1:] == (step.post.location.lower(),)
        local[parsed.template] += _is_local(parsed, step.pre.location)
        things.update(head for action in (*step.admissible, step.action) for head in parse_action(action).heads)
        new = _list_things(following) - seen
        seen |= new
        revealed[parsed.template] += not moved and (bool(new) or _opens(parsed, step, following))
    return CountedEpisode(
        id=episode,
        task=task,
        outcome=outcome,
        seed=seed,
        split=split,
        trial=trial,
        kept=list_kept(steps) if outcome >= 0.5 else (),
        length=len(steps),
        things=frozenset(things),
        counts=counts,
        arrived=arrived,
        local=local,
        revealed=revealed,
        sightings=_list_sightings(steps),
    )


def _list_sightings(steps: Sequence[Step]) -> frozenset[tuple[str, str]]:
    """Return each kind of thing once for every kind of location at which it could be acted on."""
    sightings: set[tuple[str, str]] = set()
    carried: set[str] = set()
    for before, step in zip([None, *steps], steps, strict=False):
        place = step.pre.location
        things = _list_things(step.admissible)
        if before is not None and before.pre.location != place:
            # What can be acted on in two locations in a row was carried there.
            carried = things & _list_things(before.admissible)
        if place:
            sightings |= {(place, thing) for thing in things - carried if thing != place}
    return frozenset((head_noun(location), head_noun(thing)) for location, thing in sightings)


def list_kept(steps: Sequence[Step]) -> tuple[tuple[str, str], ...]:
    """Return (action, location) of the actions of a success that neither failed nor moved, without what was undone.

    If an action is taken again at the same location among the same admissible actions, everything since the first time
    was undone: an agent that takes a thing, puts it back and takes it again needed the last time alone. Steps without
    admissible actions, such as imported ones, are all kept, because nothing tells whether anything was undone.
    """
    kept: dict[tuple[str, str, frozenset[str], int], tuple[str, str]] = {}
    for t, step in enumerate(steps):
        if not step.diagnosis.success or step.post.location != step.pre.location:
            continue
        admissible = frozenset(step.admissible)
        key = (step.action, step.pre.location, admissible, 0 if admissible else t)
        if key in kept:
            keys = [*kept]
            for undone in keys[keys.index(key) :]:
                del kept[undone]
        kept[key] = step.action, step.pre.location
    return tuple(kept.values())


def _is_local(parsed: ParsedAction, location: str) -> bool:
    """Return whether the location is the only argument of an action."""
    return bool(location) and parsed.slots == (location.lower(),)


def _opens(parsed: ParsedAction, step: Step, following: Iterable[str]) -> bool:
    """Return whether an action about its location alone made an action with another thing possible.

    `open drawer 2` makes `move soap 1 to drawer 2` possible, also if the drawer is empty. `close drawer 2` makes only
    `open drawer 2` possible, which is about no other thing.
    """
    if not _is_local(parsed, step.pre.location):
        return False
    return not _list_things({*following} - {*step.admissible}) <= {*parsed.slots}


def _list_arguments(action: str) -> list[tuple[tuple[str, int], str]]:
    """Return the (form, number) and the head of each argument of an action."""
    parsed = parse_action(action)
    return [((parsed.template, number), head) for number, head in enumerate(parsed.heads)]


def _list_things(actions: Iterable[str]) -> set[str]:
    """Return the arguments of actions."""
    return {slot for action in actions for slot in parse_action(action).slots}


def _compare_frames(first: frozenset[str], other: frozenset[str]) -> float:
    """Return the share of the words of two frames that are equal; 1 if both have none."""
    union = first | other
    return len(first & other) / len(union) if union else 1.0
