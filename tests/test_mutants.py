"""Whether the tests notice when the code does something else; see `mutants`."""

import os
from pathlib import Path

import pytest
from tests import mutants

COUNT = int(os.environ.get("MUTANTS", "120"))


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_nineteen_of_twenty_mutants_are_killed():
    """A sample of the changes of an operator in memory and runtime; set MUTANTS to try more of them."""
    pytest.importorskip("cosmic_ray", reason="make test-mutants installs cosmic-ray")
    tried, survivors = mutants.run(Path("runs/mutants"), count=COUNT, seed=0, jobs=2)
    named = "\n".join(f"{mutant.module}:{mutant.line} {mutant.operator}" for mutant in survivors)
    print(f"\nkilled {tried - len(survivors)} of {tried}\n{named}")
    assert tried - len(survivors) >= 0.95 * tried, named


def test_a_sample_keeps_its_mutants_when_others_are_added():
    """Two runs of different sizes share their mutants, so that results can be compared."""
    all_mutants = [mutants.Mutant(f"{name}.py", "core/AddNot", number, 1) for name in "abcd" for number in range(10)]
    few, many = mutants.sample(all_mutants, 5, 0), mutants.sample(all_mutants, 20, 0)
    assert set(few) < set(many)
    assert set(mutants.sample([one for one in all_mutants if one.module != "a.py"], 5, 0)) >= {
        one for one in few if one.module != "a.py"
    }
    assert set(mutants.sample(all_mutants, 5, 1)) != set(few)
