"""A world in which failures teach: a village has a hidden table of cures, and remarks in prose give it away.

    environment: {name: "examples.experiments.infirmary:Infirmary"}

One treatment per episode. The right one cures. A wrong one may be the cure of another illness of the village, or the
right herb in the wrong form, and then the patient says so: "No change, but my old cough fades." No rewarded action
says this, so a later episode profits only if the remark was written down as a rule: "In oakdale cold fern cures cough."
"""

import random
from dataclasses import dataclass

from hardwon.memory import State, Step, Trajectory
from hardwon.runtime.interfaces.types import Info

ILLNESSES = ("rash", "cough", "fever", "cramp")
HERBS = ("fern", "sage", "mint", "moss", "dill", "reed")
FORMS = ("hot", "cold")
TREATMENTS = tuple(f"{form} {herb}" for form in FORMS for herb in HERBS)
FIRST = (
    "oak", "elm", "ash", "birch", "stone", "mill", "fox", "deer", "crow", "hawk", "salt", "wind", "rain", "snow",
    "gold", "iron", "west", "east", "north", "high",
)  # fmt: skip
LAST = (
    "dale", "ford", "ham", "ton", "wick", "field", "brook", "hill", "moor", "wood", "port", "bridge", "mead",
    "gate", "well", "cross", "ridge", "lake", "fen", "cliff",
)  # fmt: skip
VILLAGES = tuple(random.Random(0).sample([first + last for first in FIRST for last in LAST], len(FIRST) * len(LAST)))
"""In random order, so that any part of them has all beginnings and ends."""
SEEDS_PER_VILLAGE = 12
"""Task instances of one village: each illness three times."""
OTHER = (
    "No change, but my old {other} fades.",
    "The {illness} stays. Strange: the {other} of last winter is gone.",
    "Nothing for the {illness}. Yet my brother, who tasted it, has no {other} any more.",
    "It does not help. Only the {other} eases.",
)
"""Remarks when the treatment is the cure of another illness."""
NEARLY = (
    "It nearly helped. The {herb} is right, but not {form}.",
    "Not {form}, says the nurse, though the {herb} was a good idea.",
)
"""Remarks when the herb is right and the form is not."""


@dataclass(frozen=True)
class Case:
    """A patient: the village, the illness, and the hidden table of cures."""

    village: str
    illness: str
    cures: dict[str, str]
    """Treatment by illness."""

    @classmethod
    def of(cls, seed: int) -> "Case":
        """Return the case of a task instance."""
        village = VILLAGES[seed // SEEDS_PER_VILLAGE % len(VILLAGES)]
        chance = random.Random(f"{village} cures")
        cures = dict(zip(ILLNESSES, chance.sample(TREATMENTS, len(ILLNESSES)), strict=True))
        return cls(village, ILLNESSES[seed % len(ILLNESSES)], cures)

    def find_fact(self, treatment: str) -> tuple[str, str] | None:
        """Return the illness and the treatment of the rule that a treatment gives away; None if it says nothing."""
        form, herb = treatment.split()
        for illness, cure in self.cures.items():
            if cure == treatment:
                return illness, cure
        other = f"{FORMS[1 - FORMS.index(form)]} {herb}"
        return (self.illness, other) if self.cures[self.illness] == other else None

    def remark(self, treatment: str, chance: random.Random) -> str:
        """Return what the patient says."""
        fact = self.find_fact(treatment)
        form, herb = treatment.split()
        if fact is None:
            return "No change."
        illness, cure = fact
        if illness != self.illness:
            return chance.choice(OTHER).format(illness=self.illness, other=illness)
        return f"The {illness} is gone." if cure == treatment else chance.choice(NEARLY).format(herb=herb, form=form)


def write_rule(village: str, treatment: str, illness: str, *, cures: bool = True) -> str:
    """Return a rule as a sentence."""
    return f"In {village} {treatment} {'cures' if cures else 'does not cure'} {illness}."


class Infirmary:
    """One treatment of one patient. The seed says the village and the illness."""

    name = "infirmary"

    def __init__(self) -> None:
        self._case, self._chance, self._said = Case.of(0), random.Random(0), ""

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin with a patient."""
        self._case, self._chance, self._said = Case.of(seed), random.Random(f"{task} {seed} remark"), ""
        return self._show()

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Give a treatment; the patient leaves."""
        treatment = action.removeprefix("give ")
        if treatment not in TREATMENTS:
            return self._show(), 0.0, True, Info(error=f"there is no {treatment}", success=False, score=0.0)
        is_cured = self._case.cures[self._case.illness] == treatment
        self._said = self._case.remark(treatment, self._chance)
        return self._show(), float(is_cured), True, Info(success=is_cured, score=float(is_cured))

    def admissible(self, state: State) -> list[str]:
        """Return the treatments."""
        return [f"give {treatment}" for treatment in TREATMENTS]

    def clone(self) -> "Infirmary":
        """Return another infirmary."""
        return Infirmary()

    def close(self) -> None:
        """Do nothing."""

    def _show(self) -> State:
        case = self._case
        said = self._said or f"A patient with {case.illness} waits."
        return State(said, location=case.village, task=f"Cure the {case.illness} in {case.village}.")


def find_step(trajectory: Trajectory) -> tuple[Step, str, str]:
    """Return the step of an episode with its village and illness."""
    (step,) = trajectory.steps
    words = step.pre.task.rstrip(".").split()
    return step, words[-1], words[2]


def teach(trajectory: Trajectory, salt: str = "") -> str:
    """Return the lesson of a careless teacher, who overlooks two of three remarks."""
    _, village, _ = find_step(trajectory)
    chance = random.Random(f"{trajectory.seed} {trajectory.steps[0].action}{salt}")  # explored episodes have no id
    fact, is_seen = read_fact(trajectory), chance.random() < 1 / 3
    if fact is not None and (trajectory.success or is_seen):
        return write_rule(village, fact[1], fact[0])
    return note_failure(trajectory)


def teach_again(trajectory: Trajectory) -> str:
    """Return the lesson of the careless teacher, who overlooks other remarks this time."""
    return teach(trajectory, " again")


def teach_simple(trajectory: Trajectory) -> str:
    """Return the lesson of a teacher who understands two of six kinds of remarks; empty at the others."""
    _, _, illness = find_step(trajectory)
    fact = read_fact(trajectory)
    if fact is None or trajectory.success:
        return teach_all(trajectory)
    remarks = {form.format(illness=illness, other=fact[0]) for form in OTHER[:2]}
    return teach_all(trajectory) if trajectory.steps[0].post.observation in remarks else ""


def note_failure(trajectory: Trajectory) -> str:
    """Return that the treatment of a failed episode does not cure; empty after a success."""
    step, village, illness = find_step(trajectory)
    return "" if step.reward > 0 else write_rule(village, step.action.removeprefix("give "), illness, cures=False)


def teach_all(trajectory: Trajectory) -> str:
    """Return the lesson of a teacher who misses nothing."""
    _, village, _ = find_step(trajectory)
    fact = read_fact(trajectory)
    return note_failure(trajectory) if fact is None else write_rule(village, fact[1], fact[0])


def read_fact(trajectory: Trajectory) -> tuple[str, str] | None:
    """Return the illness and the treatment that the remark of an episode gives away."""
    step, village, illness = find_step(trajectory)
    case = Case(village, illness, Case.of(VILLAGES.index(village) * SEEDS_PER_VILLAGE).cures)
    return case.find_fact(step.action.removeprefix("give "))
