"""Credit of a guide by hand."""

import math

import pytest

from hardwon.trainers.roles.guides.credit import Branch, guide_credit


def branches(*outcomes, tokens=0):
    return [Branch((outcome,), tokens) for outcome in outcomes]


def test_the_advantages_by_hand():
    """r = 1 - .05, 0 - .05, 1 - .1 (cost .1, length 8); r_0 = .5; std is the unbiased one."""
    generated = [Branch((1.0,), 4), Branch((0.0,), 4), Branch((1.0,), 8)]
    found = guide_credit(Branch((0.0, 1.0)), generated, cost=0.1, length=8)
    assert found.decision == pytest.approx(0.6 - 0.5, abs=1e-6)
    spread = math.sqrt((0.35**2 + 0.65**2 + 0.3**2) / 2)
    assert found.content == pytest.approx([0.35 / spread, -0.65 / spread, 0.3 / spread], abs=1e-5)
    assert found.reward == pytest.approx(0.6)


def test_equal_content_has_no_advantage():
    assert guide_credit(Branch((0.0,)), branches(1, 1, 1)).content == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("outcomes", [(1, 0, 0), (0, 0, 0)])
def test_content_is_gated_by_the_decision(outcomes):
    """systems.md §2: content only where generating beat abstaining."""
    found = guide_credit(Branch((1.0,)), branches(*outcomes))
    assert found.decision < 0
    assert found.content == (0.0, 0.0, 0.0)


def test_at_equal_mean_content_rewards_leave_the_decision_alone():
    """systems.md §2: changing content rewards with equal mean leaves the decision unchanged."""
    one, other = guide_credit(Branch((0.0,)), branches(1, 0)), guide_credit(Branch((0.0,)), branches(0.5, 0.5))
    assert one.decision == other.decision
    assert one.content != other.content


@pytest.mark.parametrize(
    ("abstained", "generated", "wrong"),
    [
        (Branch((1.0,)), branches(1), "1 generate branches"),
        (Branch((1.0,), 3), branches(1, 0), "has 3 tokens"),
    ],
)
def test_a_group_has_one_silent_branch_and_two_that_speak(abstained, generated, wrong):
    """systems.md §2: structured group: exactly one abstain and >= 2 generate branches."""
    with pytest.raises(ValueError, match=wrong):
        guide_credit(abstained, generated)
