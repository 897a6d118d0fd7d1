"""A world of operators for the probe of unstated preconditions: pairs of errands that differ in one operator.

In the first errand of a pair, the near or quick way reaches the goal only if something holds that no text names: a
car can be washed at a place only if it is there, so it has to be driven. Its twin has an operator without such a
precondition: to book a wash, walking is right. The first choice decides, and each way is the shortest one in half of
the errands.

    errand = list_errands("test")[0]
    state = Errands().reset("test", 0)

Errands of the folds `learn` and `test` are of the same kinds, and share no thing and no place.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from hardwon.memory import State
from hardwon.memory.errors import UnknownName
from hardwon.runtime.interfaces.types import Info

FOLDS = ("learn", "test")
PAIRS = 40
"""Number of pairs in each fold."""
FAILED = "That does not work."
"""Answer to an action whose unstated precondition does not hold; it does not say which one."""
Facts = frozenset[str]

AT_HOME = "You are at home."
HERE = frozenset([AT_HOME])
_SYLLABLES = (
    "ba", "dor", "el", "fin", "gra", "hul", "ist", "ka", "lom", "mir", "nes", "pra", "ruv", "tem", "vash", "zed",
)  # fmt: skip

BRING, OFFICE, PREPARE = "bring", "office", "prepare"
KINDS: tuple[tuple[str, str, str], ...] = (
    (BRING, "wash", "book a wash for"),
    (BRING, "repair", "ask the price of"),
    (BRING, "weigh", "order a cover for"),
    (BRING, "repaint", "choose a color for"),
    (OFFICE, "renew", "pick up a form for"),
    (OFFICE, "stamp", "read the rules of"),
    (OFFICE, "transfer", "pay the fee for"),
    (PREPARE, "polish", "measure"),
    (PREPARE, "drill", "photograph"),
    (PREPARE, "sand", "scan"),
)
"""Ways of being done, each with the verb that has an unstated precondition and the verb of the twin."""
THINGS: dict[str, str] = {
    BRING: "car van truck tractor scooter bicycle trailer boat caravan canoe sled wagon harp piano organ cello loom "
    "stove heater freezer mower pump boiler kayak tandem cart raft tricycle moped buggy barrow sleigh",
    OFFICE: "passport permit licence deed will patent visa pension lease grant bond title loan refund claim badge card "
    "pass ticket bill contract diploma certificate warrant",
    PREPARE: "hedge lawn floor wall fence roof deck path board shelf door gate table bench plank beam rug curtain sofa "
    "carpet window tile pipe ceiling",
}


@dataclass(frozen=True, slots=True)
class Operator:
    """An action with its conditions and effects. Facts are the sentences that a state shows."""

    text: str
    needs: Facts
    """Facts without which the action is not offered."""
    adds: Facts
    removes: Facts = frozenset()
    unstated: Facts = frozenset()
    """Facts without which the action is offered and fails."""

    def apply(self, facts: Facts) -> Facts | None:
        """Return the facts after the action, or None if it fails."""
        return (facts - self.removes) | self.adds if self.unstated <= facts else None


@dataclass(frozen=True, slots=True)
class Errand:
    """One task: the facts at the start, and the operators, the last of which reaches the goal."""

    kind: str
    has_precondition: bool
    thing: str
    place: str
    start: Facts
    scenery: str
    """Sentence in every observation: the distance of the place."""
    operators: tuple[Operator, ...]
    note: str
    """The precondition in words, or that there is none."""
    predicates: tuple[tuple[str, str, str], ...]
    """For every sentence, the name and the value of the fact that it states."""

    @property
    def goal(self) -> Operator:
        """Return the operator that completes the errand."""
        return self.operators[-1]

    @property
    def task(self) -> str:
        """Return the task, which names the operator that completes it."""
        return self.goal.text

    def list_offered(self, facts: Facts) -> list[Operator]:
        """Return the operators whose stated conditions hold, sorted by their text."""
        return sorted((o for o in self.operators if o.needs <= facts), key=lambda operator: operator.text)


def find_plan(errand: Errand) -> tuple[str, ...]:
    """Return the shortest sequence of actions that completes an errand, as one who knows every condition finds it."""
    waiting: deque[tuple[Facts, tuple[str, ...]]] = deque([(errand.start, ())])
    seen = {errand.start}
    while waiting:
        facts, path = waiting.popleft()
        for operator in errand.list_offered(facts):
            after = operator.apply(facts)
            if after is not None and operator == errand.goal:
                return (*path, operator.text)
            if after is not None and after not in seen:
                seen.add(after)
                waiting.append((after, (*path, operator.text)))
    raise AssertionError(f"{errand.task!r} cannot be completed")


def find_twin(errands: Sequence[Errand], number: int) -> Errand:
    """Return the other errand of the pair."""
    return errands[number ^ 1]


@lru_cache(maxsize=8)
def list_errands(fold: str, seed: int = 0) -> tuple[Errand, ...]:
    """Return the errands of a fold: each one with a precondition is followed by its twin.

    Args:
        fold: `learn` or `test`.
        seed: Seed of the things and places.

    Raises:
        UnknownName: There is no such fold.
    """
    if fold not in FOLDS:
        raise UnknownName.of("fold", fold, FOLDS)
    rng = random.Random(f"errands:{seed}")
    # Both folds draw from one shuffled stock, so that nothing occurs twice.
    things = {way: rng.sample(words.split(), len(words.split())) for way, words in THINGS.items()}
    places = _draw_places(rng, PAIRS * len(FOLDS))
    errands: list[Errand] = []
    for number in range(PAIRS * len(FOLDS)):
        way, *verbs = KINDS[number % len(KINDS)]
        thing, place, meters = things[way].pop(), places[number], rng.randrange(40, 200, 10)
        if FOLDS[number // PAIRS] == fold:
            errands += [_BUILDERS[way](verb, n == 0, thing, place, meters) for n, verb in enumerate(verbs)]
    return tuple(errands)


def _draw_places(rng: random.Random, count: int) -> list[str]:
    """Return different invented names."""
    names: dict[str, None] = {}
    while len(names) < count:
        names["".join(rng.choices(_SYLLABLES, k=3)).capitalize()] = None
    return list(names)


def _build_bringing(verb: str, has_precondition: bool, thing: str, place: str, meters: int) -> Errand:
    """Return an errand at a place that is a short walk away; the thing comes along only in the truck."""
    left, loaded, there = f"The {thing} is at home.", f"The {thing} is loaded.", f"The {thing} is at {place}."
    at_place = f"You are at {place}."
    away = frozenset([at_place])
    walk = Operator(f"walk to {place}", HERE, away, HERE)
    load = Operator(f"load the {thing}", HERE | {left}, frozenset([loaded]), frozenset([left]))
    drive = Operator(f"drive to {place}", HERE | {loaded}, away | {there}, HERE | {loaded})
    back = Operator("go home", away, HERE, away)
    text = f"{verb} the {thing} at {place}"
    goal = Operator(text, away, frozenset(["Done."]), unstated=frozenset([there] if has_precondition else []))
    note = f"the {thing} has to be there" if has_precondition else "nothing has to be there"
    return Errand(
        f"{BRING}: {verb}", has_precondition, thing, place, HERE | {left}, f"{place} is {meters} meters away.",
        (walk, load, drive, back, goal), f"To {verb} the {thing}, {note}.",
        ((AT_HOME, "you", "home"), (at_place, "you", "there"), (left, "thing", "home"), (loaded, "thing", "loaded"),
         (there, "thing", "there")),
    )  # fmt: skip


def _build_office(verb: str, has_precondition: bool, thing: str, place: str, meters: int) -> Errand:
    """Return an errand at a counter: the near branch, or the main office, which only the bus goes to."""
    at_stop, counter = "You are at the stop.", "You are at a counter."
    stop = frozenset([at_stop])
    branch, main = f"You are in the branch in {place}.", f"You are in the main office of {place}."
    walk = Operator(f"walk to the branch in {place}", HERE, frozenset([branch, counter]), HERE)
    leave = Operator("walk to the stop", HERE, stop, HERE)
    ride = Operator(f"ride to the main office of {place}", stop, frozenset([main, counter]), stop)
    back = Operator("go home", frozenset([counter]), HERE, frozenset([branch, main, counter]))
    text = f"{verb} the {thing} in {place}"
    unstated = frozenset([main] if has_precondition else [])
    goal = Operator(text, frozenset([counter]), frozenset(["Done."]), unstated=unstated)
    note = "you have to be in the main office" if has_precondition else "any counter will do"
    return Errand(
        f"{OFFICE}: {verb}", has_precondition, thing, place, HERE, f"The branch in {place} is {meters} meters away.",
        (walk, leave, ride, back, goal), f"To {verb} the {thing}, {note}.",
        ((AT_HOME, "you", "home"), (at_stop, "you", "stop"), (branch, "you", "branch"), (main, "you", "main office")),
    )  # fmt: skip


def _build_preparing(verb: str, has_precondition: bool, thing: str, place: str, meters: int) -> Errand:
    """Return an errand with a machine, which can be switched on at once, or charged before."""
    off, on, full = (f"The {place} machine is {word}." for word in ("off", "on", "charged"))
    start = Operator(f"switch on the {place} machine", HERE | {off}, frozenset([on]), frozenset([off]))
    charge = Operator(f"charge the {place} machine", HERE | {off}, frozenset([full]))
    stop = Operator(f"switch off the {place} machine", HERE | {on}, frozenset([off]), frozenset([on]))
    text = f"{verb} the {thing} with the {place} machine"
    goal = Operator(text, HERE | {on}, frozenset(["Done."]), unstated=frozenset([full] if has_precondition else []))
    note = "the machine has to be charged" if has_precondition else "the machine does not have to be charged"
    return Errand(
        f"{PREPARE}: {verb}", has_precondition, thing, place, HERE | {off}, f"Charging takes {meters} minutes.",
        (start, charge, stop, goal), f"To {verb} the {thing}, {note}.",
        ((AT_HOME, "you", "home"), (off, "machine", "off"), (on, "machine", "on"), (full, "battery", "charged")),
    )  # fmt: skip


_BUILDERS = {BRING: _build_bringing, OFFICE: _build_office, PREPARE: _build_preparing}


class Errands:
    """The errands as an environment: the fold is the task, and the seed the number of the errand."""

    name = "errands"
    branches = "replay"

    def __init__(self, *, is_stated: bool = False) -> None:
        """Create the environment; with `is_stated`, the notes of every state say whether there is a precondition."""
        self._is_stated = is_stated
        self._errand = list_errands("learn")[0]
        self._facts = self._errand.start

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin an errand of the fold `task`; the seed is its number, and begins anew after the last one."""
        errands = list_errands(task or "learn")
        self._errand = errands[seed % len(errands)]
        self._facts = self._errand.start
        return self._build_state("")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Run an action."""
        operator = next((o for o in self._errand.list_offered(self._facts) if o.text == action), None)
        if operator is None:
            return self._build_state(""), 0.0, False, Info(invalid="This cannot be done here.")
        after = operator.apply(self._facts)
        if after is None:
            return self._build_state(FAILED), 0.0, False, Info(error=FAILED)
        self._facts = after
        is_done = operator == self._errand.goal
        info = Info(success=True, score=1.0) if is_done else Info(score=0.0)
        return self._build_state("Done." if is_done else ""), float(is_done), is_done, info

    def _build_state(self, feedback: str) -> State:
        errand = self._errand
        location = next((fact for fact in sorted(self._facts) if fact.startswith("You are")), "")
        observation = " ".join([*sorted(self._facts), errand.scenery])
        facts = {name: value for sentence, name, value in errand.predicates if sentence in self._facts}
        notes = (errand.note,) if self._is_stated else ()
        return State(observation, facts, location, errand.task, feedback, notes)

    def admissible(self, state: State) -> list[str]:
        """Return the actions whose stated conditions hold."""
        return [operator.text for operator in self._errand.list_offered(self._facts)]

    def clone(self) -> "Errands":
        """Return a fresh environment of the same kind."""
        return Errands(is_stated=self._is_stated)

    def close(self) -> None:
        """Release nothing."""
