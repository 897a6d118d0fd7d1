"""An item helps in one world and hurts in another: effects, masks, and the score that it keeps at home."""

import random
from dataclasses import replace

import pytest
from tests.memory.older import downgrade

from hardwon.memory import ExperienceLibrary, Item, State
from hardwon.memory.storage.cache_files import CacheFile
from hardwon.memory.storage.world_scores import BEFORE, PRIOR, compute_overall, score_in
from hardwon.memory.values.effects import Arms, _count_arms, hurts, is_tried, shrink
from hardwon.memory.values.tuning import TUNING

SEE = "You see a wooden drawer. It is closed."
HOME, ABROAD = "bake the bread in the oven", "repair the bicycle outside"
TRIED = 0.1
"""The chance of trials: that an item which fits is withheld, and that a masked one is shown."""


def state(task):
    """The same drawer, for a task."""
    return State(SEE, task=task)


@pytest.fixture
def ref(library):
    """An item about the drawer."""
    title = "look behind the wooden drawer"
    return str(library.add(Item("insight", title, signatures=(state(HOME).signature,))).item_id)


class Trials:
    """Episodes in which chance decides as the runtime does it."""

    def __init__(self, library, episode, ref):
        self.library, self.episode, self.ref = library, episode, ref
        self.chance = random.Random(0)

    def run(self, task, count, *, helps):
        """Record episodes: they succeed where the item is shown and helps, or is not shown and hurts."""
        for _ in range(count):
            found = self.library.recall(state(task))
            masked = self.ref in found.masked
            assert masked != (self.ref in [hit.what.id for hit in found.items])
            shown = (self.chance.random() < TRIED) == masked
            self.record(task, shown, success=shown == helps, masked=masked)

    def record(self, task, shown, *, success, masked=False):
        """Record one episode."""
        made = self.episode("open drawer", see=SEE, task=task, success=success, meta={"environment": task[:6]})
        why = {"recalled" if shown else "withheld": [self.ref]} | ({"masked": [self.ref]} if masked else {})
        self.library.record(replace(made, steps=tuple(replace(step, why=why) for step in made.steps)))

    def is_masked(self, task):
        """Whether the item is left out for a task."""
        return self.ref in self.library.recall(state(task)).masked


@pytest.fixture
def trials(library, episode, ref):
    """Episodes with the item."""
    return Trials(library, episode, ref)


# ---- the formula


def test_an_effect_by_hand():
    """Two worlds of 18 shown and 18 withheld: d = +-0.4; they differ by more than chance, so little is shrunk."""
    arms = {1: Arms(18, 13, 18, 5), 2: Arms(18, 5, 18, 13)}
    found = shrink(arms)
    v = 2 * 0.7 * 0.3 / 20
    between = (2 / v * 0.4**2 - 1) / (2 / v - 1 / v)  # (Q - 1) / (sum w - sum w^2 / sum w), of equal weights
    share = v / (v + between)
    variance = (1 - share) * v + share**2 * (v + between) / 2
    assert found[1].difference == pytest.approx(0.4 * (1 - share))
    assert found[1].high - found[1].low == pytest.approx(2 * 1.645 * variance**0.5)
    assert found[2].difference == pytest.approx(-found[1].difference)
    assert not hurts(arms[1], found[1])
    assert hurts(arms[2], found[2])


def test_an_arm_without_episodes_tells_nothing():
    """Neither no episodes at all nor ones of a single arm have an effect, and nothing is divided by 0."""
    assert shrink({}) == {}
    assert shrink({1: Arms(9, 9), 2: Arms(0, 0, 9, 9)}) == {}


def test_of_a_single_world_nothing_is_shrunk():
    """Its effect is the smoothed difference itself, with the variance of that."""
    (found,) = shrink({7: Arms(8, 7, 6, 1)}).values()
    p, q = 8 / 10, 2 / 8
    assert found.difference == pytest.approx(p - q)
    assert found.high - found.low <= 2 * 1.645 * (p * (1 - p) / 10 + q * (1 - q) / 8) ** 0.5 + 1e-9


def test_worlds_that_agree_sharpen_each_other():
    """A world of few episodes is drawn to the mean of the others; the order of worlds does not matter."""
    arms = {world: Arms(30, 27, 30, 6) for world in range(1, 5)} | {9: Arms(2, 1, 2, 1)}
    found = shrink(arms)
    assert found[9].difference > 0.4
    assert found[9].high - found[9].low < shrink({9: arms[9]})[9].high - shrink({9: arms[9]})[9].low
    assert shrink(dict(reversed(arms.items())))[9].difference == pytest.approx(found[9].difference)
    assert TUNING.min_effect_deviation > 0


def test_episodes_with_another_chance_are_compared_among_themselves():
    """In use .5 and 0 shown against withheld, masked 1 and .75: two gains of about .3, where the sums show a loss."""
    in_use, masked = Arms(38, 19, 4, 0), Arms(4, 4, 38, 28)
    together = replace(in_use, masked=masked)
    assert shrink({1: together})[1].difference > 0.1
    assert shrink({1: Arms(42, 23, 42, 28)})[1].difference < 0
    # by hand: the inverse of the variances weighs the two differences
    p, q, v = [], [], []
    for arms in (in_use, masked):
        p.append((arms.shown_won + 1) / (arms.shown + 2))
        q.append((arms.withheld_won + 1) / (arms.withheld + 2))
        v.append(p[-1] * (1 - p[-1]) / (arms.shown + 2) + q[-1] * (1 - q[-1]) / (arms.withheld + 2))
    mean = sum((a - b) / c for a, b, c in zip(p, q, v, strict=True)) / sum(1 / c for c in v)
    assert shrink({1: together})[1].difference == pytest.approx(mean)


def test_a_group_of_episodes_with_one_arm_tells_nothing():
    """Episodes that all showed the item, or all withheld it, are compared with none of the other group."""
    assert shrink({1: Arms(9, 9, masked=Arms(0, 0, 9, 0))}) == {}
    alone = shrink({1: Arms(8, 7, 6, 1)})
    assert shrink({1: Arms(8, 7, 6, 1, Arms(0, 0, 30, 30))}) == alone
    assert shrink({1: Arms(0, 0, 30, 30, Arms(8, 7, 6, 1))}) == alone
    assert not is_tried(Arms(TUNING.min_arm_episodes, 0, TUNING.min_arm_episodes - 1, 0, Arms(0, 0, 9, 9)))
    assert is_tried(Arms(TUNING.min_arm_episodes - 1, 0, 1, 0, Arms(1, 0, TUNING.min_arm_episodes, 0)))


def test_episodes_of_both_groups_share_a_window_of_those_that_showed_the_item():
    """40 new ones while masked: the older ones in use no longer count, so neither does their comparison."""
    outcomes: dict[tuple[bool, ...], list[tuple[int, int]]] = {
        (False, True): [(number, 0) for number in range(TUNING.effect_episodes)],
        (False, False): [(100 + number, 1) for number in range(4)],
        (True, True): [(200 + number, 1) for number in range(TUNING.effect_episodes - 10)],
        (True, False): [(300 + number, 1) for number in range(2 * TUNING.effect_episodes)],
    }
    half = _count_arms(outcomes)
    assert half.shown == 10
    assert half.masked == Arms(
        TUNING.effect_episodes - 10, TUNING.effect_episodes - 10, TUNING.effect_episodes, TUNING.effect_episodes
    )
    outcomes[True, True] = [(200 + number, 1) for number in range(TUNING.effect_episodes)]
    forgotten = _count_arms(outcomes)
    assert (forgotten.shown, forgotten.withheld) == (0, 4)
    assert forgotten.compared == (
        Arms(TUNING.effect_episodes, TUNING.effect_episodes, TUNING.effect_episodes, TUNING.effect_episodes),
    )


# ---- masks


def test_an_item_is_masked_where_it_hurts_and_stays_at_home(library, trials, ref):
    """After 60 episodes in each world: left out abroad, shown at home, with the score that it earned there."""
    trials.run(HOME, 60, helps=True)
    trials.run(ABROAD, 60, helps=False)
    assert trials.is_masked(ABROAD)
    assert not trials.is_masked(HOME)
    assert library.items.get(ref).status == "active"
    assert library.items.get(ref).score > 0.8
    effects = {effect.name.partition(":")[0]: effect for effect in library.items.effects(ref)}
    home, abroad = effects[HOME[:6]], effects[ABROAD[:6]]
    assert home.difference > 0.3
    assert not home.masked
    assert abroad.high < 0
    assert abroad.masked


def test_a_world_that_changes_has_its_item_back(library, trials, ref):
    """Masked abroad; then it helps there: within 60 episodes it is offered again, for good."""
    trials.run(HOME, 40, helps=True)
    trials.run(ABROAD, 60, helps=False)
    assert trials.is_masked(ABROAD)
    trials.run(ABROAD, 60, helps=True)
    assert not trials.is_masked(ABROAD)
    trials.run(ABROAD, 2 * TUNING.effect_episodes, helps=True)
    assert not trials.is_masked(ABROAD)


def test_an_agent_that_gets_better_meanwhile_does_not_keep_an_item_masked(library, trials, ref):
    """Masked by bad luck while the agent fails; then it succeeds with the item and without: the item comes back.

    Nine of ten of the later episodes are without the item, and nine of ten of the earlier ones were with it.
    """
    trials.run(HOME, 10, helps=True)
    for number in range(40):
        trials.record(ABROAD, number % 10 > 0, success=number % 10 == 0 or number % 3 == 0)
    assert trials.is_masked(ABROAD)
    for number in range(200):
        masked = trials.is_masked(ABROAD)
        trials.record(ABROAD, (number % 10 == 0) == masked, success=number % 9 > 0, masked=masked)
    assert not trials.is_masked(ABROAD)


def test_few_episodes_mask_nothing(library, trials):
    """Two failures are chance, and so are two of each arm."""
    trials.run(HOME, 10, helps=True)
    for _ in range(TUNING.min_arm_episodes - 1):
        trials.record(ABROAD, True, success=False)
        assert not trials.is_masked(ABROAD)
        trials.record(ABROAD, False, success=True)
        assert not trials.is_masked(ABROAD)


def test_harm_abroad_costs_nothing_at_home(library, trials, ref):
    """However often it fails in a foreign world, before any was withheld there: its score stays, and it is recalled."""
    trials.run(HOME, 30, helps=True)
    before = library.items.get(ref).score
    for _ in range(50):
        trials.record(ABROAD, True, success=False)
    assert library.items.get(ref).score >= before - 0.05
    assert not trials.is_masked(HOME)


def test_a_pinned_item_is_never_masked(library, trials, ref):
    """A person wants it shown."""
    trials.run(HOME, 20, helps=True)
    trials.run(ABROAD, 60, helps=False)
    assert trials.is_masked(ABROAD)
    library.items.update(ref, pinned=True)
    assert not trials.is_masked(ABROAD)


def test_a_skill_is_not_offered_where_it_hurts(library, episode):
    """And `masked` asks for it, for trials."""
    skill = Item("skill", "open it", steps=("open drawer", "look"), source="person")
    skill_trials = Trials(library, episode, str(library.add(skill).item_id))
    for task, won in ((HOME, True), (ABROAD, False)):
        for number in range(40):
            shown = number % 4 > 0
            skill_trials.record(task, shown, success=shown == won)
    assert [item.id for item in library.offered(state(HOME))] == [skill_trials.ref]
    assert library.offered(state(ABROAD)) == ()
    assert [item.id for item in library.offered(state(ABROAD), masked=True)] == [skill_trials.ref]
    assert library.offered(state(HOME), masked=True) == ()


def test_a_question_without_a_task_is_of_no_world(library, trials, ref):
    """Where nothing tells the world, nothing is left out."""
    trials.run(HOME, 20, helps=True)
    trials.run(ABROAD, 60, helps=False)
    assert ref in [hit.what.id for hit in library.recall(State(SEE)).items]


def test_another_process_masks_the_same(library, path, trials, ref):
    """What is masked is read from the file."""
    with ExperienceLibrary.open(path) as other:
        trials.run(HOME, 20, helps=True)
        assert ref not in other.recall(state(ABROAD)).masked
        trials.run(ABROAD, 60, helps=False)
        assert ref in other.recall(state(ABROAD)).masked


# ---- the file


def test_an_export_keeps_effects_and_masks(library, trials, ref, tmp_path):
    """They follow from the usages, and the score at home is not lost to the first failures after."""
    trials.run(HOME, 30, helps=True)
    trials.run(ABROAD, 60, helps=False)
    library.admin.export_jsonl(tmp_path / "all.jsonl")
    with ExperienceLibrary.open(tmp_path / "other.db") as other:
        other.admin.import_jsonl(tmp_path / "all.jsonl")
        assert ref in other.recall(state(ABROAD)).masked
        assert ref not in other.recall(state(HOME)).masked
        again = Trials(other, trials.episode, ref)
        for _ in range(30):
            again.record(ABROAD, True, success=False)
        assert other.items.get(ref).score == pytest.approx(library.items.get(ref).score)
        assert other.admin.verify() == []


def test_verify_finds_scores_that_cannot_be(library, trials, ref):
    """A row of no item, of no world, or outside 0 to 1; repair drops them."""
    trials.run(HOME, 4, helps=True)
    assert library.admin.verify() == []
    with library._file.transaction() as connection:
        connection.execute("INSERT INTO item_worlds VALUES (1, 'nobody', 1, 0.5, 1)")
        connection.execute("INSERT INTO item_worlds VALUES (1, ?, 99, 0.5, 1)", (ref,))
        connection.execute("UPDATE item_worlds SET score = 7 WHERE item_id = ? AND world = 1", (ref,))
    (problem,) = library.admin.verify()
    assert (problem.where, problem.what[0]) == ("scores per world", "3")
    library.admin.repair()
    assert library.admin.verify() == []


def test_what_is_forgotten_is_not_counted(library, trials, ref):
    """Without the episodes abroad nothing is masked there; scores stay with their worlds; an item takes its own."""
    trials.run(ABROAD, 3, helps=True)
    trials.run(HOME, 30, helps=True)
    for number in range(40):
        trials.record(ABROAD, number % 4 > 0, success=number % 4 == 0)
    assert trials.is_masked(ABROAD)
    for row in library.episodes.find():
        if row["task"] == ABROAD:
            library.admin.forget(episode=row["id"])
    assert [effect.name.partition(":")[0] for effect in library.items.effects(ref)] == [HOME[:6]]
    assert library.admin.verify() == []
    library.admin.forget(text="behind the wooden drawer")
    assert library._file.store.rows("SELECT * FROM item_worlds") == []


def test_a_file_of_an_older_version_keeps_what_its_items_earned(path, episode):
    """It has no scores per world; failures abroad are not charged to what the item had."""
    with ExperienceLibrary.open(path) as library:
        title = "look behind the wooden drawer"
        trials = Trials(library, episode, str(library.add(Item("insight", title)).item_id))
        for task in (HOME, ABROAD):
            for _ in range(12):
                trials.record(task, True, success=task == HOME)
        with library._file.transaction() as connection:
            connection.execute("DELETE FROM item_worlds")
        library.items.update(trials.ref, score=0.9)
    downgrade(path, 11)
    with ExperienceLibrary.open(path) as library:
        trials.library = library
        for _ in range(20):
            trials.record(ABROAD, True, success=False)
        assert library.items.get(trials.ref).score == pytest.approx(0.9)
        assert not trials.is_masked(HOME)


def test_a_person_who_sets_the_score_sets_it_in_every_world(library, trials, ref):
    """The next episode does not bring the old one back."""
    trials.run(HOME, 20, helps=True)
    library.items.update(ref, score=0.2)
    trials.record(HOME, True, success=False)
    assert library.items.get(ref).score < 0.25


def test_the_score_of_all_worlds():
    """That of the world where it surely helps most: neither a lucky first use nor a foreign failure moves it."""
    assert compute_overall({1: (0.7, 3)}) == 0.7
    assert compute_overall({BEFORE: (0.9, 3), 1: (0.6, 1), 2: (0.1, 50)}) == 0.9
    assert compute_overall({1: (0.8, 20), 2: (0.95, 1)}) == 0.8
    assert compute_overall({1: (0.2, 1), 2: (0.4, 3)}) == 0.4


def test_values_of_worlds_that_were_united_are_passed_over_in_silence(library, caplog):
    """That is how worlds grow; a file of values of another make is worth a warning."""
    files = CacheFile(library._file.store, 1)
    for name in ("world-values", "values"):
        files.save(name, "one make", 0, 0, {})
        assert files.load(name, "another make") is None
    assert [record.message.partition(" was skipped")[0][-8:] for record in caplog.records] == ["1-values"]


# ---- the order of items


def test_items_are_ranked_by_their_score_in_this_world(library, episode, ref):
    """One that is good at home and poor abroad comes first at home and last abroad, while it is not masked yet."""
    other = str(
        library.add(Item("insight", "look beside the wooden drawer", signatures=(state(HOME).signature,))).item_id
    )
    for _ in range(20):
        for item, task, success in (
            (ref, HOME, True),
            (ref, ABROAD, False),
            (other, HOME, False),
            (other, ABROAD, True),
        ):
            Trials(library, episode, item).record(task, True, success=success)
    for item in (ref, other):
        library.items.update(item, pinned=True)
    assert library.items.get(ref).score == pytest.approx(library.items.get(other).score, abs=0.05)

    def order(task):
        return [hit.what.id for hit in library.recall(state(task)).items]

    assert order(HOME) == [ref, other]
    assert order(ABROAD) == [other, ref]


def test_the_score_in_a_world_by_hand():
    """Shrunk to the mean over worlds; a person who moves the item's score moves it in every world."""
    scores = {1: (0.9, 15), 2: (0.3, 5)}
    mean = (0.9 * 15 + 0.3 * 5) / 20
    assert score_in({}, 1, 0.6) == 0.6
    assert score_in(scores, 1, 0.9) == pytest.approx((15 * 0.9 + PRIOR * mean) / (15 + PRIOR))
    assert score_in(scores, 2, 0.9) == pytest.approx((5 * 0.3 + PRIOR * mean) / (5 + PRIOR))
    assert score_in(scores, 3, 0.9) == pytest.approx(mean)
    assert score_in(scores, 3, 0.4) == pytest.approx(mean - 0.5)
    assert score_in({4: (0.7, 3)}, 4, 0.7) == pytest.approx(0.7)
    assert score_in({4: (0.7, 3)}, 4, 0.0) == 0.0


def test_three_episodes_of_each_arm_can_mask_and_two_cannot(library, trials):
    """LEAST is three: written out here, so that another value is noticed."""
    trials.run(HOME, 10, helps=True)
    for number in range(12):
        trials.record(ABROAD, True, success=False)
        if number < 2:
            trials.record(ABROAD, False, success=True)
    effect = {one.name.partition(":")[0]: one for one in trials.library.items.effects(trials.ref)}[ABROAD[:6]]
    assert (effect.shown, effect.withheld) == (12, 2)
    assert not hurts(Arms(40, 0, 2, 2), shrink({1: Arms(40, 0, 2, 2)})[1])
    assert hurts(Arms(40, 0, 3, 3), shrink({1: Arms(40, 0, 3, 3)})[1])
    assert not is_tried(Arms(2, 0, 40, 40))
    assert is_tried(Arms(3, 0, 3, 3))


def test_only_the_newest_forty_episodes_of_an_arm_count(library, trials, ref):
    """WINDOW is forty: written out here, so that another value is noticed."""
    for number in range(55):
        trials.record(HOME, True, success=number < 15)
        trials.record(HOME, False, success=number >= 15)
    (effect,) = library.items.effects(ref)
    assert (effect.shown, effect.withheld) == (40, 40)
    assert effect.difference == pytest.approx(1 / 42 - 41 / 42)
