"""BFCL as an environment; needs the package `bfcl-eval`, without its dependencies."""

import pytest

from hardwon.memory.errors import ConfigError, MissingExtra, UnknownName
from hardwon.runtime.environments import bfcl, open_environment

pytest.importorskip("bfcl_eval")


def solved(environment, fold, seed):
    """The last answer after the calls of the solution."""
    state = environment.reset(fold, seed)
    for calls in bfcl.tasks(environment.game, fold)[seed].solution:
        for call in calls:
            assert not environment.admissible(state) or call in environment.admissible(state)
            state, *_ = environment.step(call)
        state, reward, done, info = environment.step("answer()")
    return reward, done, info


@pytest.mark.parametrize("category", bfcl.CATEGORIES)
def test_the_solutions_calls_are_right_to_the_official_checker(category):
    reward, done, info = solved(bfcl.Bfcl(category, choices=8), "train", 1)
    assert (reward, done, info["success"]) == (1.0, True, True)


def test_the_gold_path_solves_the_running_task():
    environment = bfcl.Bfcl("base", choices=8)
    with pytest.raises(ConfigError, match="call reset first"):
        environment.gold_path()
    environment.reset("dev", 3)
    *_, (_, reward, done, info) = map(environment.step, environment.gold_path())
    assert (reward, done, info["success"]) == (1.0, True, True)


@pytest.mark.slow
@pytest.mark.parametrize("category", bfcl.CATEGORIES)
def test_every_task_can_be_solved(category):
    environment = bfcl.Bfcl(category, choices=8)
    for fold in bfcl.FOLDS:
        for seed in range(len(bfcl.tasks(category, fold))):
            assert solved(environment, fold, seed)[2]["success"], (fold, seed)


def test_doing_nothing_is_wrong():
    environment = bfcl.Bfcl()
    environment.reset("dev", 0)
    done = False
    while not done:
        _, reward, done, info = environment.step("answer()")
    assert (reward, info["success"]) == (0.0, False)


def test_a_failing_call_is_an_error_of_the_step():
    environment = bfcl.Bfcl()
    environment.reset("train", 0)
    state, _, done, info = environment.step("cd(folder='nowhere')")
    assert "No such file" in info["error"]
    assert (state.facts["after"], done) == ("cd failed", False)


def test_a_function_of_another_service_is_refused():
    environment = bfcl.Bfcl()
    environment.reset("train", 0)
    assert "no function 'startEngine'" in environment.step("startEngine(ignitionMode='START')")[3]["invalid"]


def test_a_call_is_never_evaluated_as_code():
    environment = bfcl.Bfcl()
    environment.reset("train", 0)
    assert "not a call" in environment.step("cd(folder=__import__('os').getcwd())")[3]["invalid"]


def test_a_function_that_is_not_there_yet_is_hidden_until_it_is():
    environment = bfcl.Bfcl("miss_func")
    environment.reset("train", 0)
    assert "sort(" not in environment.describe()
    assert "no function 'sort'" in environment.step("sort('a')")[3]["invalid"]
    for _ in range(3):
        environment.step("answer()")
    assert "sort(" in environment.describe()


def test_the_schemas_are_those_of_the_functions_that_can_be_called_now():
    environment = bfcl.Bfcl("miss_func")
    environment.reset("train", 0)
    schemas = environment.tool_schemas()
    assert "sort" not in schemas
    assert "answer" in schemas
    assert (schemas["cd"]["type"], schemas["cd"]["properties"]["folder"]["type"]) == ("object", "string")
    for _ in range(3):
        environment.step("answer()")
    assert "sort" in environment.tool_schemas()


def test_the_leaderboards_types_become_json_types():
    named = {"type": {"type": "string"}, "at": {"type": "tuple", "items": {"type": "float"}}, "any": {"type": "any"}}
    schema = bfcl.convert_schema({"type": "dict", "properties": named, "required": ["type"]})
    assert schema == {
        "type": "object",
        "properties": {"type": {"type": "string"}, "at": {"type": "array", "items": {"type": "number"}}, "any": {}},
        "required": ["type"],
    }


def test_no_story_of_one_fold_is_told_in_another():
    numbers = [
        {task.id.rpartition("_")[2] for category in bfcl.CATEGORIES for task in bfcl.tasks(category, fold)}
        for fold in bfcl.FOLDS
    ]
    assert sum(map(len, numbers)) == len(set().union(*numbers)) == 200


def test_the_checker_leaves_nothing_behind():
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    before = set(vars(multi_turn_utils))
    solved(bfcl.Bfcl(), "train", 0)
    assert set(vars(multi_turn_utils)) == before


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: bfcl.Bfcl("bases"), UnknownName),
        (lambda: bfcl.Bfcl(choices=-1), ConfigError),
        (lambda: bfcl.Bfcl().reset("training"), UnknownName),
        (lambda: bfcl.Bfcl().count_seeds("training"), UnknownName),
        (lambda: bfcl.Bfcl().reset("dev", 50), ConfigError),
        (lambda: bfcl.Bfcl().step("answer()"), ConfigError),
        (lambda: open_environment("bfcl", params="choice=3"), ConfigError),
    ],
)
def test_what_cannot_work_is_refused(make, error):
    with pytest.raises(error):
        make()


def test_without_the_package_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(bfcl, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="pip install --no-deps bfcl-eval mpmath"):
        bfcl.Bfcl()


def test_a_task_ends_with_its_last_request_only():
    """An answer to an earlier request goes on with the next one, without a reward."""
    environment = bfcl.Bfcl()
    seeds = range(len(bfcl.tasks(environment.game, "train")))
    seed = next(seed for seed in seeds if len(bfcl.tasks(environment.game, "train")[seed].requests) > 1)
    environment.reset("train", seed)
    answers = [environment.step("answer()") for _ in bfcl.tasks(environment.game, "train")[seed].requests]
    assert [done for _, _, done, _ in answers] == [False] * (len(answers) - 1) + [True]
    assert all(reward == 0.0 for _, reward, _, _ in answers[:-1])


def test_an_action_needs_a_running_task():
    """Before the first one, after the last answer, and after the environment was closed."""
    environment = bfcl.Bfcl("base", choices=8)
    ended, closed = environment.clone(), environment.clone()
    state = ended.reset("train", 1)
    done = False
    while not done:
        *_, done, _ = ended.step("answer()")
    closed.reset("train", 1)
    closed.close()
    for stopped in (environment, ended, closed):
        with pytest.raises(ConfigError, match="call reset first"):
            stopped.step("answer()")
        assert stopped.admissible(state) == []


def test_the_seeds_of_a_fold_are_named():
    with pytest.raises(ConfigError, match="its seeds are 0 to 99"):
        bfcl.Bfcl().reset("train", 100)


@pytest.mark.parametrize("action", ["hello", "fly()"])
def test_an_action_that_is_no_call_here_changes_nothing(action):
    environment = bfcl.Bfcl()
    before = environment.reset("train", 0)
    state, reward, done, info = environment.step(action)
    assert (reward, done, info["success"], info["lost"]) == (0.0, False, False, False)
    assert (state.observation, state.feedback) == (before.observation, info["invalid"])


def test_a_call_that_the_service_cannot_take_is_an_error():
    environment = bfcl.Bfcl()
    environment.reset("train", 0)
    state, *_, info = environment.step("cd(nowhere=1)")
    assert "nowhere" in info["error"]
    assert state.facts["after"] == "cd failed"


@pytest.mark.parametrize("missing", [0, 1])
def test_the_score_is_the_share_of_turns_before_the_first_wrong_one(missing):
    """Nothing is called in the last turn, or all that is needed."""
    task = next(task for task in bfcl.tasks("base", "train") if len(task.requests) > 2 and all(task.solution))
    environment = bfcl.Bfcl()
    environment.reset("train", bfcl.tasks("base", "train").index(task))
    turns = len(task.requests)
    for calls in task.solution[: turns - missing]:
        for call in calls:
            environment.step(call)
        state, reward, done, info = environment.step("answer()")
    if missing:
        assert not done
        state, reward, done, info = environment.step("answer()")
    assert (reward, done, info["success"], info["lost"]) == ((turns - missing) / turns, True, not missing, False)
    assert (state.feedback == "All requests are fulfilled.") is (not missing)
    assert state.feedback


def test_a_function_that_comes_later_is_announced_and_hidden_before():
    entry = {"id": "x_1", "question": [[{"content": "Go."}], []], "missed_function": {"1": ["fly"]},
             "involved_classes": []}  # fmt: skip
    task = bfcl._task(entry, [["walk()"], ["fly()"]])
    assert list(map(sorted, task.hidden)) == [["fly"], []]
    assert task.requests == ("Go.", "There are more functions now: fly. Go on with what could not be done.")


def test_as_many_calls_are_on_offer_as_were_asked_for():
    """And the answer beside them; calls of functions that a task lacks are left out."""
    environment = bfcl.Bfcl("base", choices=8)
    offers = [len(environment.admissible(environment.reset("train", seed))) for seed in range(12)]
    assert max(offers) == 9


def test_an_argument_that_may_be_left_out_says_so():
    fields = {"a": {"type": "string", "description": "A."}, "b": {"type": "integer", "description": "B."}}
    parameters = {"properties": fields, "required": ["a"]}
    function = {"name": "f", "description": "Tool description: Do it.", "parameters": parameters}
    assert bfcl._format_function(function).splitlines()[0] == "f(a: string, b: integer (may be left out)): Do it."


def test_long_results_are_cut():
    assert bfcl._clip("x" * bfcl.SHOWN_CHARS) == "x" * bfcl.SHOWN_CHARS
    assert bfcl._clip("x" * (bfcl.SHOWN_CHARS + 1)) == "x" * bfcl.SHOWN_CHARS + " ..."


@pytest.mark.parametrize("what", ["tool_schemas", "describe"])
def test_functions_before_an_episode_are_an_error(what):
    with pytest.raises(ConfigError, match="call reset first"):
        getattr(open_environment("bfcl"), what)()
