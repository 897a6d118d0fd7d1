"""Composers at their edges: broken episodes, empty notes, counts, and what ends a round."""

from dataclasses import replace

import pytest
from tests.trainers.algorithms.test_composers import end, make_path, specs

from hardwon.memory import Diagnosis, State, Step, Trajectory
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.composers import ComposerParts, EndedEpisode
from hardwon.trainers.algorithms.signals import Signals
from hardwon.trainers.methods.blocks.accounts import write_account
from hardwon.trainers.methods.herl import write_rubrics


def step(number, *, right=True, **diagnosis):
    return Step(State(f"Hall {number}. Dust.", task="t"), f"act {number}", State("x"), Diagnosis(right, **diagnosis))


def walked(*steps):
    return Trajectory("t", steps, False)


class TestNotes:
    def test_an_account_names_the_last_three_steps_that_failed_or_went_in_circles(self):
        steps = [step(n, right=n > 2, loop=n == 4) for n in range(6)]
        lines = write_account(walked(*steps)).split("\n")
        assert lines == ["hall 1 : act 1 failed .", "hall 2 : act 2 failed .", "hall 4 : act 4 failed ."]

    def test_without_such_a_step_it_names_the_last_three(self):
        lines = write_account(walked(*map(step, range(5)))).split("\n")
        assert [line.split(" : ")[0] for line in lines] == ["hall 2", "hall 3", "hall 4"]

    def test_a_step_without_an_action_or_with_a_hidden_one_is_not_named(self):
        steps = [step(0, right=False), replace(step(1), action=""), step(2)]
        assert write_account(walked(*steps), frozenset({"act 0"})) == "hall 2 : act 2 failed ."
        assert write_account(walked(*steps), frozenset({"act 0", "act 2"})) == ""

    def test_a_location_comes_before_the_first_sentence(self):
        placed = replace(step(0), pre=State("Hall 0. Dust.", location="Cellar"))
        assert write_account(walked(placed)) == "cellar : act 0 failed ."

    def test_a_step_that_made_progress_is_met_and_named_once(self):
        steps = [step(0, progress=0.5), step(0, progress=0.1), replace(step(1), reward=1.0), step(2, right=False)]
        lines = write_rubrics(walked(*steps)).split("\n")
        assert lines == ["hall 0 : not failed .", "hall 1 : not failed .", "hall 2 : act 2 failed ."]

    def test_nothing_unmet_is_no_note(self):
        assert write_rubrics(walked(replace(step(0), reward=1.0)), frozenset({"act 0"})) == ""


class TestHinted:
    def make(self, demonstrate=lambda task, seed: make_path(4), **settings):
        return PARTS.get("composer", "hinted")(ComposerParts(demonstrate=demonstrate), **settings)

    def lose(self, composer, iteration=0):
        return composer.more([end(spec, 0) for spec in composer.begin(specs(), iteration)])

    def test_hints_begin_with_their_first_iteration(self):
        composer = self.make(start=2)
        assert [len(self.lose(composer, number)) for number in (1, 2)] == [0, 4]

    def test_groups_are_counted_once(self):
        composer = self.make()
        self.lose(composer)
        assert composer.drain_metrics()["compose/hinted_groups"] == 1

    @pytest.mark.parametrize("path", [None, make_path(0)])
    def test_a_group_without_a_solution_gets_no_hint(self, path):
        composer = self.make(lambda task, seed: path)
        assert self.lose(composer) == []
        assert composer.drain_metrics() == {"compose/without_hint": 1}


class TestRetry:
    def test_an_episode_is_tried_again_once_and_a_broken_one_never(self):
        composer = PARTS.get("composer", "retry")(ComposerParts(), attempts=3)
        broken, lost = composer.begin(specs(2))
        done = [end(broken, 0, failed="environment_crash"), end(lost, 0)]
        (second,) = composer.more(done)
        assert second.parent == lost.session
        assert composer.more([*done, end(second, 1)]) == []
        assert composer.drain_metrics()["compose/retries"] == 1

    def test_an_episode_without_a_step_leaves_nothing_to_read(self):
        composer = PARTS.get("composer", "retry")(ComposerParts())
        assert composer.more([end(spec, 0, 0) for spec in composer.begin(specs())]) == []

    def test_the_budget_is_the_number_of_attempts(self):
        assert PARTS.get("composer", "retry")(ComposerParts(), attempts=3).budget == 3.0


def grade(ended, score):
    """The episode with a graded outcome."""
    trajectory = replace(ended.rollout.trajectory, score=score, success=score >= 1)
    return EndedEpisode(ended.spec, replace(ended.rollout, trajectory=trajectory, measure="score"))


class TestRevise:
    def play(self, composer, *scores):
        return [
            grade(end(spec, 0), score) for spec, score in zip(composer.begin(specs(len(scores))), scores, strict=True)
        ]

    def test_the_best_unfinished_ones_are_revised_first(self):
        composer = PARTS.get("composer", "revise")(ComposerParts(), candidates=2)
        done = self.play(composer, 0.1, 0.7, 1.0, 0.4)
        assert [spec.parent for spec in composer.more(done)] == [done[1].spec.session, done[3].spec.session]
        assert composer.drain_metrics()["compose/revisions"] == 2

    def test_a_group_is_revised_once_and_a_broken_episode_never(self):
        composer = PARTS.get("composer", "revise")(ComposerParts())
        first, second = composer.begin(specs(2))
        done = [end(first, 0, failed="environment_crash"), end(second, 0)]
        (own,) = composer.more(done)
        assert own.parent == second.session
        assert composer.more([*done, end(own, 0)]) == []

    def test_a_revision_must_beat_the_best_and_pays_its_own_episode(self):
        """Outcomes 0.2 and 0.6: a revision of the first with 0.6 joins nothing and pays 5 % of 0.4."""
        for score, labels in ((0.6, 0), (0.7, 1)):
            composer = PARTS.get("composer", "revise")(ComposerParts(seed=1))
            done = self.play(composer, 0.2, 0.6)
            revisions = [spec for spec in composer.more(done) if spec.parent == done[0].spec.session]
            kept = composer.finish([*done, *(grade(end(spec, 0), score) for spec in revisions)])
            assert sum(bool(one.label) for one in kept) == labels
            assert len(kept) == 2
            assert composer.drain_metrics().get("compose/kept", 0) == labels
            bonus = {one.trajectory.id: one.bonus for one in kept if not one.label}
            assert bonus.get(done[0].spec.session, 0.05 * (score - 0.2)) == pytest.approx(0.05 * (score - 0.2))
            assert bonus.get(done[1].spec.session, 0.0) == 0.0

    def test_a_broken_revision_counts_for_nothing(self):
        composer = PARTS.get("composer", "revise")(ComposerParts())
        done = self.play(composer, 0.2)
        revisions = [end(spec, 1, failed="environment_crash") for spec in composer.more(done)]
        assert composer.finish([*done, *revisions]) == [done[0].rollout]


class TestReflected:
    def test_the_last_round_reflects_and_the_note_is_about_an_episode_that_ended(self):
        composer = PARTS.get("composer", "reflected")(ComposerParts(), rounds=3)
        first, second = composer.begin(specs(2), 2)
        broken = end(first, 0, failed="environment_crash", actions=["crash"] * 3)
        following = composer.more([broken, end(second, 0)])
        assert len(following) == 2
        assert all("act 2" in spec.note and "crash" not in spec.note for spec in following)
        assert composer.drain_metrics()["compose/reflected_groups"] == 1
        assert composer.more([broken]) == []


class TestRepair:
    def play(self, walk, actions=("act 0", "act 1"), scores=(0.9, 0.1), **settings):
        gold = make_path(4, actions=[f"good {t}" for t in range(4)])
        composer = PARTS.get("composer", "repair")(
            ComposerParts(demonstrate=lambda task, seed: gold, walk=walk), **settings
        )
        done = [end(spec, 0, len(scores), actions=list(actions)) for spec in composer.begin(specs(1))]
        done = [EndedEpisode(s, replace(r, signals=Signals({"steps": tuple(scores)}))) for s, r in done]
        return composer, done, composer.more(done)

    @staticmethod
    def take(task, seed, actions):
        return make_path(len(actions), success=False, actions=list(actions))

    @pytest.mark.parametrize(
        "walk",
        [
            lambda task, seed, actions: None,
            lambda task, seed, actions: make_path(len(actions) - 1, success=False),
            lambda task, seed, actions: make_path(len(actions), success=True),
        ],
    )
    def test_a_way_that_cannot_be_walked_or_that_ends_the_episode_is_no_repair(self, walk):
        assert self.play(walk)[2] == []

    def test_the_demonstration_must_do_something_else_there(self):
        assert self.play(self.take, actions=("act 0", "good 1"))[2] == []
        assert len(self.play(self.take, actions=("act 0", "act 1"))[2]) == 2

    def test_copies_are_numbered_after_the_group_and_repaired_once(self):
        composer, done, own = self.play(self.take, copies=3)
        assert [spec.copy for spec in own] == [1, 2, 3]
        assert composer.drain_metrics()["compose/repaired"] == 1
        assert composer.more([*done, *(end(spec, 0, 1) for spec in own)]) == []

    def test_a_broken_episode_is_not_repaired_and_a_score_at_the_bound_is_right(self):
        composer, ((spec, rollout),), _ = self.play(self.take)
        assert composer.more([EndedEpisode(spec, replace(rollout, failed="environment_crash"))]) == []
        assert self.play(self.take, scores=(0.9, 0.5))[2] == []
        assert self.play(self.take, scores=(None, 0.4))[2] != []


class TestPrefixed:
    def make(self, n=8, **settings):
        return PARTS.get("composer", "prefixed")(
            ComposerParts(demonstrate=lambda task, seed: make_path(n)), **{"groups": 1.0, **settings}
        )

    def test_the_success_rate_is_a_moving_mean_of_prefixed_episodes_that_ended(self):
        """Half, then all: the newest has the weight of the moving mean; plain and broken episodes do not count."""

        composer = self.make(shares="0.5")
        for outcomes in ((1, 0, 1, 0), (1, 1, 1, 1)):
            begun = composer.begin(specs())
            done = [end(spec, out).rollout for spec, out in zip(begun, outcomes, strict=True)]
            broken = end(begun[0], 0, failed="environment_crash").rollout
            composer.observe([*done, broken, end(replace(begun[0], prefix=()), 0).rollout])
        assert composer.drain_metrics()["compose/success_at_0.5"] == pytest.approx((1 - 0.5) * 0.5 + 0.5)

    def test_prefixes_are_counted(self):
        composer = self.make(shares="0.5")
        composer.begin(specs(2, seeds=(0, 1)))
        metrics = composer.drain_metrics()
        assert (metrics["compose/prefixed_groups"], metrics["compose/prefix_steps"]) == (2, 8)

    def test_a_demonstration_of_one_step_has_no_prefix(self):
        composer = self.make(1)
        assert composer.begin(specs()) == specs()
        assert composer.drain_metrics()["compose/without_prefix"] == 1


class TestStarts:
    def make(self, walk=None, **settings):
        def take(task, seed, actions):
            return replace(make_path(len(actions), success=False, actions=list(actions)), score=0.5)

        return PARTS.get("composer", "starts")(
            ComposerParts(walk=walk or take), **{"first": 1, "probability": 1.0, **settings}
        )

    def test_there_are_no_starts_of_groups_that_always_succeed_and_none_of_two_first_steps(self):
        composer = self.make()
        composer.observe([end(spec, 1).rollout for spec in specs()])
        composer.observe([end(spec, 0, 1).rollout for spec in specs()])
        composer.observe([replace(end(spec, 0).rollout, label="try 2") for spec in specs()])
        composer.observe([end(spec, 0, failed="environment_crash").rollout for spec in specs()])
        assert composer.state_dict() == {"starts": []}
        composer.observe([end(spec, 0, 2).rollout for spec in specs(1)])
        assert composer.state_dict() == {"starts": [["#0", ["act 0"], 0.0]]}

    def test_the_lowest_priorities_are_dropped(self):
        composer = self.make(size=1)
        composer.observe([end(spec, 0).rollout for spec in specs(seeds=(0,))])
        composer.observe([end(spec, spec.copy % 2).rollout for spec in specs(seeds=(1,))])
        ((group, _, priority),) = composer.state_dict()["starts"]
        assert (group, priority) == ("#1", pytest.approx(1 / 3))

    @pytest.mark.parametrize(
        "walk",
        [
            lambda task, seed, actions: None,
            lambda task, seed, actions: make_path(len(actions) + 1, success=False),
            lambda task, seed, actions: make_path(len(actions)),
            lambda task, seed, actions: replace(make_path(len(actions), success=False), score=1.0),
        ],
    )
    def test_a_start_that_cannot_be_reached_or_improved_is_dropped(self, walk):
        composer = self.make(walk)
        composer.observe([end(spec, 0, 2).rollout for spec in specs(1)])
        assert composer.begin(specs()) == specs()
        assert composer.state_dict() == {"starts": []}

    def test_too_few_starts_or_none_of_the_instance_are_plain_episodes(self):
        few = self.make(first=2)
        few.observe([end(spec, 0, 2).rollout for spec in specs(1)])
        assert few.begin(specs()) == specs()
        assert len(few.state_dict()["starts"]) == 1
        other = self.make()
        other.observe([end(spec, 0, 2).rollout for spec in specs(1, seeds=(5,))])
        assert other.begin(specs()) == specs()

    def test_only_episodes_of_a_start_are_credited_by_their_improvement(self):
        composer = self.make()
        composer.observe([end(spec, 0, 2).rollout for spec in specs(1)])
        begun = composer.begin(specs())
        assert composer.drain_metrics()["compose/started_groups"] == 1
        half = grade(end(begun[0], 0, 1), 0.75)
        plain = grade(end(specs()[0], 0, 1), 0.75)
        broken = end(begun[1], 0, 1, failed="environment_crash")
        assert [one.bonus for one in composer.finish([half, plain, broken])] == [pytest.approx(-0.25), 0.0, 0.0]
