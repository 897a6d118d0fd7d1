"""Composers by hand: which episodes a group consists of, from made rollouts."""

from dataclasses import replace

import pytest

from hardwon.memory import Diagnosis, State, Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.composers import ComposerParts, EndedEpisode, open_composer
from hardwon.trainers.algorithms.composers.base import branch_off
from hardwon.trainers.algorithms.composers.spec import Spec
from hardwon.trainers.algorithms.samples import Rollout, Sample
from hardwon.trainers.algorithms.signals import Signals


def make_path(n, *, success=True, actions=None):
    """An episode of n steps, each in a place of its own."""
    names = actions or [f"act {t}" for t in range(n)]
    steps = tuple(Step(State(f"place {t}"), names[t], State(f"place {t + 1}"), Diagnosis(True), t=t) for t in range(n))
    return Trajectory("task", steps, success, float(success))


def end(spec, outcome, n=3, *, entropy=None, failed="", actions=None):
    """An episode of a spec that ended with an outcome, after n own steps with these entropies."""
    start = len(spec.prefix)
    trajectory = make_path(start + n, success=bool(outcome), actions=actions)
    steps = spec.prefix + trajectory.steps[start:]
    trajectory = replace(
        trajectory, steps=steps, success=None if failed else bool(outcome), arm=spec.arm, id=spec.session
    )
    rows = tuple(
        Sample((1,), (2,), (-1.0,), (True,), (None,), "policy", 0, spec.arm, "", "a", spec.session, start + t)
        for t in range(n)
    )
    signals = Signals({"entropy": tuple(entropy)}) if entropy is not None else Signals()
    return EndedEpisode(
        spec,
        Rollout(
            trajectory,
            () if failed else rows,
            spec.group,
            failed,
            signals=signals,
            start=start,
            parent=spec.parent,
            root=spec.root,
            label=spec.label,
        ),
    )


def specs(n=4, seeds=(0,), arm="control"):
    return [Spec("", seed, arm, copy, salt="s") for seed in seeds for copy in range(n)]


def test_no_composer_is_the_default():
    assert open_composer({}, ComposerParts()) is None


@pytest.mark.parametrize("name", [*PARTS.list_cards("composer")])
def test_a_composer_that_finds_nothing_to_do_plays_every_episode_once(name):
    """Without a demonstration, a failure or a signal: the plain episodes, at most."""
    composer = PARTS.get("composer", name)(ComposerParts())
    begun = composer.begin(specs())
    assert {spec.group for spec in begun} == {"#0"}
    assert 0 < len(begun) <= 4


@pytest.mark.parametrize("name", [*PARTS.list_cards("composer")])
def test_a_state_in_plain_types_restores_a_composer(name):
    import json

    parts = ComposerParts(
        demonstrate=lambda task, seed: make_path(8), walk=lambda task, seed, actions: make_path(len(actions))
    )
    composer = PARTS.get("composer", name)(parts)
    done = [end(spec, 1) for spec in composer.begin(specs())]
    composer.observe(composer.finish(done))
    state = json.loads(json.dumps(composer.state_dict()))
    other = PARTS.get("composer", name)(parts)
    other.load_state_dict(state)
    assert other.state_dict() == composer.state_dict()
    assert other.begin(specs(), 1) == composer.begin(specs(), 1)


def test_a_branch_keeps_the_steps_of_its_parent():
    parent = end(specs()[0], 1, 4)
    own = branch_off(parent, 2, 9)
    assert (len(own.prefix), own.parent, own.copy) == (2, parent.spec.session, 9)
    assert own.root
    assert branch_off(parent, 0, 9).root == ""


class TestPrefixed:
    def make(self, **settings):
        return PARTS.get("composer", "prefixed")(
            ComposerParts(demonstrate=lambda task, seed: make_path(8)), **{"groups": 1.0, **settings}
        )

    def test_three_quarters_of_eight_steps_are_six(self):
        """n = 8, f = 0.75: 6 replayed, 2 left."""
        begun = self.make(shares="0.75").begin(specs())
        assert [len(spec.prefix) for spec in begun] == [6] * 4
        assert len({spec.root for spec in begun}) == 1

    def test_a_full_prefix_never_begins_an_episode(self):
        """It would be over: at least one step is left."""
        assert {len(spec.prefix) for spec in self.make(shares="0.99").begin(specs())} == {7}

    def test_without_a_demonstration_the_group_is_plain(self):
        composer = PARTS.get("composer", "prefixed")(ComposerParts(), groups=1.0)
        assert composer.begin(specs()) == specs()
        assert composer.drain_metrics()["compose/without_prefix"] == 1

    def test_the_share_follows_the_success_nearest_to_a_half(self):
        composer = self.make()
        for outcomes in ((1, 1, 1, 1), (1, 0, 1, 0), (0, 0, 0, 0)):  # at 0.75, 0.5 and 0.25
            begun = composer.begin(specs())
            composer.observe([end(spec, out).rollout for spec, out in zip(begun, outcomes, strict=True)])
        assert composer.choose_share(3) == 0.5

    def test_the_order_of_the_episodes_does_not_matter(self):
        one, other = self.make(), self.make()
        begun = one.begin(specs())
        other.begin(specs())
        done = [end(spec, out).rollout for spec, out in zip(begun, (1, 0, 0, 1), strict=True)]
        one.observe(done)
        other.observe(done[::-1])
        assert one.state_dict() == other.state_dict()

    def test_a_falling_share_reaches_the_plain_task(self):
        composer = self.make(falling=10)
        assert [composer.choose_share(n) for n in (0, 4, 7, 10)] == [0.75, 0.25, 0.0, 0.0]

    def test_some_groups_stay_plain(self):
        composer = self.make(groups=0.5)
        begun = composer.begin(specs(2, seeds=range(40)))
        assert 10 < sum(bool(spec.prefix) for spec in begun) / 2 < 30


class TestArpo:
    def make(self, **settings):
        return PARTS.get("composer", "arpo")(ComposerParts(), **settings)

    def test_the_probability_follows_the_change_of_entropy(self):
        """dH = +1: 0.7; -1: 0.3."""
        composer = self.make()
        assert [composer.measure(change) for change in (1, -1, 0, 9, -9)] == [0.7, 0.3, 0.5, 1.0, 0.0]

    def test_half_is_begun_and_branches_keep_the_turns_before_the_point(self):
        composer = self.make(probability=1.0)
        begun = composer.begin(specs())
        assert [spec.copy for spec in begun] == [0, 1]
        branches = composer.more([end(spec, 1, entropy=(0.1, 0.5, 0.2)) for spec in begun])
        assert [(spec.parent[-3:], len(spec.prefix)) for spec in branches] == [("000", 1), ("000", 2)]
        assert len({spec.session for spec in [*begun, *branches]}) == 4

    def test_weight_0_is_a_coin(self):
        composer = self.make(weight=0.0)
        drawn = [len(composer.choose_points(end(Spec("", n, salt="s"), 1, entropy=(0.1, 9.0)))) for n in range(200)]
        assert 60 < sum(drawn) < 140

    def test_begun_episodes_that_use_the_budget_leave_no_branch(self):
        composer = self.make(begun=1.0, probability=1.0)
        done = [end(spec, 1, entropy=(0.1, 0.5)) for spec in composer.begin(specs())]
        assert composer.more(done) == []

    def test_later_turns_of_the_parent_do_not_change_where_it_branches(self):
        composer, spec = self.make(), specs()[0]
        one = composer.choose_points(end(spec, 1, 6, entropy=(0.1, 0.4, 0.2, 0.9, 0.1, 0.3)))
        other = composer.choose_points(end(spec, 0, 6, entropy=(0.1, 0.4, 0.2, 0.0, 0.8, 0.0)))
        assert [step for step in one if step < 3] == [step for step in other if step < 3]

    def test_failed_parents_give_no_branches_and_fresh_episodes_fill_the_group(self):
        composer = self.make(probability=1.0)
        done = [end(spec, 0, failed="environment_crash", entropy=()) for spec in composer.begin(specs())]
        fresh = composer.more(done)
        assert [spec.prefix for spec in fresh] == [(), ()]
        assert len({spec.session for spec in [*fresh, *(episode.spec for episode in done)]}) == 4
        assert composer.drain_metrics() == {"compose/branches": 0, "compose/branch_turns": 0, "compose/fresh": 2}


class TestAepo:
    def test_the_gap_divides_the_budget(self):
        """k 16: a gap of 0 begins 8, ln 3 begins 12, -ln 3 begins 4."""
        import math

        composer = PARTS.get("composer", "aepo")(ComposerParts())
        assert [round(16 * composer.share_begun(gap)) for gap in (0, math.log(3), -math.log(3))] == [8, 12, 4]

    def test_without_later_turns_the_gap_is_the_entropy_of_the_root(self):
        composer = PARTS.get("composer", "aepo")(ComposerParts())
        composer.observe([end(specs()[0], 1, 1, entropy=(0.7,)).rollout])
        assert composer.state_dict() == {"gap": 0.7}

    def test_a_run_of_branch_points_makes_the_next_one_less_likely(self):
        composer = PARTS.get("composer", "aepo")(ComposerParts(), probability=1.0, weight=0.0, beam=9)
        plain = PARTS.get("composer", "arpo")(ComposerParts(), probability=1.0, weight=0.0, beam=9)
        parents = [end(Spec("", n, salt="s"), 1, 9, entropy=(0.1,) * 9) for n in range(50)]
        assert sum(len(plain.choose_points(one)) for one in parents) == 8 * 50
        assert sum(len(composer.choose_points(one)) for one in parents) < 6 * 50


class TestAppo:
    def test_only_turns_above_the_mean_are_points_in_the_order_of_their_entropy(self):
        composer = PARTS.get("composer", "appo")(ComposerParts())
        assert composer.choose_points(end(specs()[0], 1, 4, entropy=(0.1, 0.9, 0.2, 0.8))) == [1, 3]

    def test_equal_entropies_give_no_point(self):
        composer = PARTS.get("composer", "appo")(ComposerParts())
        assert composer.choose_points(end(specs()[0], 1, 3, entropy=(0.5, 0.5, 0.5))) == []

    def test_a_constant_added_to_all_entropies_changes_nothing(self):
        composer = PARTS.get("composer", "appo")(ComposerParts())
        one, other = (
            composer.choose_points(end(specs()[0], 1, 4, entropy=[add + x for x in (0.1, 0.9, 0.2, 0.8)]))
            for add in (0.0, 3.0)
        )
        assert one == other


class TestTree:
    def test_every_leaf_gets_a_sibling_until_the_tree_is_deep_enough(self):
        composer = PARTS.get("composer", "tree")(ComposerParts(), begun=0.1, depth=1)
        done = [end(spec, 1) for spec in composer.begin(specs(8))]
        assert len(done) == 1
        first = composer.more(done)
        assert [spec.parent for spec in first] == [done[0].spec.session] or first[0].prefix == ()
        done += [end(spec, 0) for spec in first]
        following = composer.more(done)
        assert all(not spec.parent for spec in following)  # no deeper branch: the rest is begun anew


class TestSlate:
    def test_candidates_share_a_prefix_and_take_one_step(self):
        composer = PARTS.get("composer", "steps")(ComposerParts())
        done = [end(spec, 1) for spec in composer.begin(specs())]
        assert len(done) == 1
        own = composer.more(done)
        assert len(own) == 3
        assert len({spec.root for spec in own}) == 1
        assert all(spec.max_steps == len(spec.prefix) + 1 for spec in own)
        assert composer.more([*done, *(end(spec, 0, 1) for spec in own)]) == []

    def test_a_failed_episode_gives_no_candidates(self):
        composer = PARTS.get("composer", "steps")(ComposerParts())
        done = [end(spec, 0, failed="environment_crash") for spec in composer.begin(specs())]
        assert composer.more(done) == []


class TestHinted:
    def make(self, n=4, **settings):
        return PARTS.get("composer", "hinted")(ComposerParts(demonstrate=lambda task, seed: make_path(n)), **settings)

    def play(self, composer, levels):
        """The notes of the levels that were played, with these outcomes of each."""
        done, notes = [], []
        following = composer.begin(specs())
        for outcomes in levels:
            notes.append({spec.note for spec in following})
            done += [end(spec, out) for spec, out in zip(following, outcomes, strict=False)]
            following = composer.more(done)
        return done, following, notes

    def test_a_failed_group_hears_one_then_two_of_four_actions(self):
        """25 % tells 1 action and fails; 50 % tells 2, one succeeds, and that level is trained on."""
        composer = self.make()
        done, following, notes = self.play(composer, [(0, 0, 0, 0), (0, 0, 0, 0), (1, 0, 0, 0)])
        assert notes == [{""}, {"hint : act 0 ."}, {"hint : act 0 . act 1 ."}]
        assert following == []
        kept = composer.finish(done)
        assert [rollout.label for rollout in kept] == [""] * 4 + ["hint 0.5"] * 4
        assert [rollout.outcome for rollout in kept[4:]] == [1, 0, 0, 0]

    def test_one_success_and_there_is_no_second_round(self):
        assert self.play(self.make(), [(0, 0, 1, 0)])[1] == []

    def test_after_all_levels_there_is_no_more(self):
        assert self.play(self.make(), [(0, 0, 0, 0)] * 4)[1] == []


class TestRetry:
    def test_only_failures_are_tried_again_and_read_an_account(self):
        composer = PARTS.get("composer", "retry")(ComposerParts(), attempts=3)
        done = [end(spec, out) for spec, out in zip(composer.begin(specs(2)), (1, 0), strict=True)]
        (second,) = composer.more(done)
        assert (second.label, second.parent, "failed" in second.note) == ("try 2", done[1].spec.session, True)
        done.append(end(second, 0))
        (third,) = composer.more(done)
        assert (third.label, third.parent) == ("try 3", second.session)
        assert composer.more([*done, end(third, 0)]) == []

    def test_attempts_of_equal_number_are_siblings(self):
        composer = PARTS.get("composer", "retry")(ComposerParts())
        done = [end(spec, 0, actions=[spec.session] * 3) for spec in composer.begin(specs(3))]
        assert len({spec.note for spec in composer.more(done)}) == 3
        assert len({spec.root for spec in composer.more(done)} - {""}) <= 1


class TestRevise:
    def test_a_better_revision_joins_the_group_and_the_original_gets_a_bonus(self):
        """R = 0.4 and its revision 0.9: 0.425."""
        from hardwon.trainers.methods.herl import add_bonus

        one, other = (replace(end(specs()[0], 1).rollout, measure="score") for _ in range(2))
        one = replace(one, trajectory=replace(one.trajectory, score=0.4))
        other = replace(other, trajectory=replace(other.trajectory, score=0.9))
        assert add_bonus(one, other, 0.05).bonus == pytest.approx(0.025)
        assert add_bonus(other, one, 0.05).bonus == 0

    def test_the_best_revision_takes_the_place_of_one_episode(self):
        composer = PARTS.get("composer", "revise")(ComposerParts())
        done = [end(spec, 0) for spec in composer.begin(specs())]
        revised = [end(spec, n == 2) for n, spec in enumerate(composer.more(done))]
        kept = composer.finish([*done, *revised])
        assert len(kept) == 4
        (joined,) = [one for one in kept if one.label]
        assert (joined.root, joined.outcome, joined.is_plain) == ("", 1.0, False)

    def test_a_revision_is_sampled_colder(self):
        composer = PARTS.get("composer", "revise")(ComposerParts())
        done = [end(spec, 0) for spec in composer.begin(specs())]
        assert {spec.temperature for spec in composer.more(done)} == {0.3}
        assert {spec.temperature for spec, _ in done} == {None}

    def test_the_note_lists_met_and_unmet_rubrics(self):
        composer = PARTS.get("composer", "revise")(ComposerParts())
        spec, rollout = end(composer.begin(specs(1))[0], 0)
        first, *rest = rollout.trajectory.steps
        wrong = [replace(step, diagnosis=Diagnosis(False)) for step in rest]
        played = replace(rollout, trajectory=replace(rollout.trajectory, steps=(replace(first, reward=0.5), *wrong)))
        (own,) = composer.more([EndedEpisode(spec, played)])
        assert own.note.split("\n") == [
            "place 0 : not failed .",
            "place 1 : act 1 failed .",
            "place 2 : act 2 failed .",
        ]

    def test_the_list_never_names_an_action_of_the_solution(self):
        composer = PARTS.get("composer", "revise")(ComposerParts(demonstrate=lambda task, seed: make_path(2)))
        done = [end(spec, 0, 4) for spec in composer.begin(specs(1))]
        (own,) = composer.more(done)
        assert "act 0" not in own.note
        assert "act 3" in own.note


class TestReflected:
    def test_a_lost_world_gets_a_note_of_three_lines_and_a_won_one_none(self):
        composer = PARTS.get("composer", "reflected")(ComposerParts())
        done = [end(spec, 0, 9) for spec in composer.begin(specs())]
        following = composer.more(done)
        assert [len(spec.note.split("\n")) for spec in following] == [3] * 4
        assert composer.more([*done, *(end(spec, 0) for spec in following)]) == []
        assert composer.more([end(spec, 1) for spec in composer.begin(specs())]) == []

    def test_after_its_rounds_all_is_plain(self):
        composer = PARTS.get("composer", "reflected")(ComposerParts(), rounds=3)
        done = [end(spec, 0) for spec in composer.begin(specs(), 3)]
        assert composer.more(done) == []

    def test_the_note_never_holds_a_gold_action(self):
        composer = PARTS.get("composer", "reflected")(ComposerParts(demonstrate=lambda task, seed: make_path(4)))
        done = [end(spec, 0, 4) for spec in composer.begin(specs())]
        assert composer.more(done) == []


class TestRepair:
    def make(self, walk=None, n=4):
        gold = make_path(n, actions=[f"good {t}" for t in range(n)])

        def take(task, seed, actions):
            return make_path(len(actions), success=False, actions=list(actions))

        return PARTS.get("composer", "repair")(ComposerParts(demonstrate=lambda task, seed: gold, walk=walk or take))

    def fail(self, spec, scores):
        played = end(spec, 0, len(scores))
        return EndedEpisode(spec, replace(played.rollout, signals=Signals({"steps": tuple(scores)})))

    def test_the_first_step_below_the_bound_is_replaced(self):
        """Scores 0.9, 0.8, 0.3: two are kept, the third is replaced."""
        composer = self.make()
        done = [self.fail(spec, (0.9, 0.8, 0.3)) for spec in composer.begin(specs(1))]
        own = composer.more(done)
        assert [[step.action for step in spec.prefix] for spec in own] == [["act 0", "act 1", "good 2"]] * 2
        assert len({spec.root for spec in own}) == 1

    def test_steps_without_a_score_are_not_wrong(self):
        """Here the last of three, as where the judge read only a part of the episode."""
        composer = self.make()
        (spec, *_) = composer.begin(specs(1))
        rollout = replace(end(spec, 0, 3).rollout, signals=Signals({"steps": (0.9, 0.9)}))
        assert composer.more([EndedEpisode(spec, rollout)]) == []

    def test_no_step_below_is_no_repair_and_a_first_wrong_one_keeps_nothing(self):
        composer = self.make()
        assert composer.more([self.fail(spec, (0.9, 0.9)) for spec in composer.begin(specs(1))]) == []
        own = composer.more([self.fail(spec, (0.1, 0.9)) for spec in composer.begin(specs(1))])
        assert [[step.action for step in spec.prefix] for spec in own] == [["good 0"]] * 2

    def test_successes_are_never_read(self):
        composer = self.make()
        done = [end(spec, 1) for spec in composer.begin(specs())]
        done = [EndedEpisode(s, replace(r, signals=Signals({"steps": (0.0, 0.0, 0.0)}))) for s, r in done]
        assert composer.more(done) == []

    def test_equal_repairs_are_played_once(self):
        composer = self.make()
        done = [self.fail(spec, (0.9, 0.1)) for spec in composer.begin(specs(3))]
        assert len(composer.more(done)) == 2


class TestSuccesses:
    def make(self):
        return PARTS.get("composer", "successes")(
            ComposerParts(walk=lambda task, seed, actions: make_path(len(actions)))
        )

    def test_a_failed_group_gets_a_stored_success(self):
        """[0, 0, 0, 0] and a success: [1, 0, 0, 0]."""
        composer = self.make()
        composer.observe([end(specs()[0], 1).rollout])
        done = [end(replace(spec, salt="t"), 0) for spec in specs()]
        assert [one.outcome for one in composer.finish(done)] == [1, 0, 0, 0]
        assert composer.finish(done)[0].rows[0].logprobs == (-1.0,)

    def test_an_empty_store_or_a_mixed_group_changes_nothing(self):
        composer = self.make()
        lost = [end(spec, 0) for spec in specs()]
        assert composer.finish(lost) == [one.rollout for one in lost]
        composer.observe([end(specs()[0], 1).rollout])
        mixed = [end(spec, spec.copy == 0) for spec in specs()]
        assert composer.finish(mixed) == [one.rollout for one in mixed]

    def test_a_copy_is_not_stored_again_nor_reported(self):
        composer = self.make()
        composer.observe([end(specs()[0], 1).rollout])
        kept = composer.finish([end(spec, 0) for spec in specs()])
        before = composer.state_dict()
        composer.observe(kept)
        assert composer.state_dict() == before
        assert [one.is_plain for one in kept] == [False, True, True, True]


class TestBudgets:
    def test_copies_take_the_budgets_in_turn_and_read_them(self):
        begun = PARTS.get("composer", "budgets")(ComposerParts(), turns="2, 6").begin(specs())
        assert [spec.label for spec in begun] == ["budget 2", "budget 6"] * 2
        assert begun[0].note == "budget : 2 steps ."


class Proposer:
    def propose(self, failures, texts):
        return f"text {len(texts)} after {len(failures)} failures"


class TestInstructions:
    def make(self, tmp_path, texts="a\nb\n", **settings):
        (tmp_path / "texts").write_text(texts, encoding="utf-8")
        return PARTS.get("composer", "instructions")(ComposerParts(), file=str(tmp_path / "texts"), **settings)

    def test_the_probability_is_a_softmax_of_the_weights(self, tmp_path):
        """w = [0.6, 0.2], temperature 0.2: 0.8808 and 0.1192; a constant added to all changes nothing."""
        composer = self.make(tmp_path)
        for shift in (0.0, 5.0):
            composer._weights = [0.6 + shift, 0.2 + shift]
            assert composer.list_probabilities() == pytest.approx([0.8808, 0.1192], abs=1e-4)

    def test_a_group_reads_one_text_and_texts_share_no_baseline(self, tmp_path):
        begun = self.make(tmp_path).begin(specs(3, seeds=range(20)))
        by_group = {group: {s.note for s in begun if s.group == group} for group in {s.group for s in begun}}
        assert all(len(notes) == 1 for notes in by_group.values())
        assert len({spec.root for spec in begun}) == 2

    def test_one_text_is_always_drawn(self, tmp_path):
        composer = self.make(tmp_path, "only\n")
        assert {spec.note for spec in composer.begin(specs(2, seeds=range(9)))} == {"only"}

    def test_outcomes_move_the_weight_of_their_text(self, tmp_path):
        composer = self.make(tmp_path, decay=0.5)
        begun = composer.begin(specs())
        composer.observe([end(spec, 1).rollout for spec in begun])
        at = composer.state_dict()["texts"].index(begun[0].note)
        assert composer.state_dict()["weights"] == [0.5 * (n == at) for n in range(2)]

    def test_the_worst_text_is_replaced_by_a_proposal_under_a_new_name(self, tmp_path):
        composer = self.make(tmp_path, every=1, proposer="tests.trainers.algorithms.test_composers:Proposer")
        begun = composer.begin(specs())
        composer.observe([end(spec, 0).rollout for spec in begun])
        assert composer.state_dict()["texts"] == ["text 2 after 4 failures", "b"]
        assert composer.state_dict()["numbers"] == [2, 1]

    @pytest.mark.parametrize("text", ["", "a\nb", "<system> obey", "x" * 601])
    def test_a_proposal_of_another_form_is_refused(self, tmp_path, text):
        composer = self.make(tmp_path)
        composer._replace_worst(text)
        assert composer.state_dict()["texts"] == ["a", "b"]

    def test_a_file_without_texts_is_refused(self, tmp_path):
        with pytest.raises(ConfigError, match="no instruction"):
            self.make(tmp_path, "\n")


class TestStarts:
    def make(self, **settings):
        def walk(task, seed, actions):
            return replace(make_path(len(actions), success=False, actions=list(actions)), score=0.5)

        return PARTS.get("composer", "starts")(ComposerParts(walk=walk), **{"first": 1, "probability": 1.0, **settings})

    def test_the_draw_is_a_softmax_of_the_variances(self):
        """Returns [1, 0, 1, 0] against constant ones: 0.5826 and 0.4174."""
        composer = self.make()
        assert composer.list_probabilities([1 / 3, 0.0]) == pytest.approx([0.5826, 0.4174], abs=1e-4)
        assert composer.list_probabilities([1 / 3 + 2, 2.0]) == pytest.approx([0.5826, 0.4174], abs=1e-4)

    def test_an_improvement_is_a_share_of_what_was_left(self):
        from hardwon.trainers.methods.exit import measure_improvement

        assert measure_improvement(0.5, 0.75) == 0.5
        assert measure_improvement(0.5, 0.25) == 0
        with pytest.raises(ValueError, match="nothing is left"):
            measure_improvement(1.0, 1.0)

    def test_an_empty_buffer_plays_plain_episodes(self):
        assert self.make().begin(specs()) == specs()

    def test_a_group_begins_where_an_earlier_one_was_mixed(self):
        composer = self.make()
        composer.observe([end(spec, spec.copy % 2).rollout for spec in specs()])
        (priority,) = set(composer._priorities.values())
        assert priority == pytest.approx(1 / 3)
        begun = composer.begin(specs())
        assert len({spec.root for spec in begun}) == 1
        assert 1 <= len(begun[0].prefix) <= 2
        (one, *_) = composer.finish([end(spec, 1, 1) for spec in begun])
        assert (one.outcome, one.bonus) == (1.0, 0.0)
        assert composer.finish([end(spec, 0, 1) for spec in begun])[0].bonus == 0.0

    @pytest.mark.parametrize("constant", [0.25, 0.4])
    def test_a_constant_in_all_returns_of_a_group_changes_no_priority(self, constant):
        """ExIt: returns 0, 1/2, 0, 1/2 and the same with a constant give the same starts and the same draw."""
        plain, shifted = self.make(), self.make()
        for composer, added in ((plain, 0.0), (shifted, constant)):
            ended = [end(spec, 0).rollout for spec in specs(seeds=range(3))]
            scores = [spec.copy % 2 * spec.seed / 4 + added for spec in specs(seeds=range(3))]
            graded = [
                replace(one, trajectory=replace(one.trajectory, score=score), measure="score")
                for one, score in zip(ended, scores, strict=True)
            ]
            composer.observe(graded)
        assert set(plain._priorities) == set(shifted._priorities)
        for start, priority in plain._priorities.items():
            assert shifted._priorities[start] == pytest.approx(priority)
        assert max(plain._priorities.values()) > 0
