"""An episode as a conversation: append-only, the same for every reader, rebuilt from recorded steps."""

import random
from dataclasses import replace

import pytest

from hardwon.memory import Diagnosis, Recollection, State, Step
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.interfaces.working_memory import WorkingMemory
from hardwon.runtime.llm.conversation import Conversations, PromptBuilder

ACTIONS = ("go north", "take coin")


def context(history=(), *, see="a hall", thread="t", **changes):
    made = Context(
        State(see, task="find the coin"), ACTIONS, Recollection(), None, {}, tuple(history), WorkingMemory(),
        random.Random(0), thread=thread,
    )  # fmt: skip
    return replace(made, **changes)


def step(action, see="a hall", after="a room"):
    return Step(State(see, task="find the coin"), action, State(after, task="find the coin"), Diagnosis(True))


def play(log, *actions, thread="t"):
    """Play a prefix of an episode and return the conversation at its next turn."""
    history: list[Step] = []
    for n, action in enumerate(actions):
        chat = log.advance(context(history, see=f"place {n}", thread=thread, guidance=f"hint {n}"))
        log.answer(chat, action, (n,))
        history.append(step(action, f"place {n}", f"place {n + 1}"))
    return log.advance(context(history, see=f"place {len(actions)}", thread=thread))


def test_each_prompt_begins_with_the_one_before_and_its_answer():
    log, history = Conversations(), list[Step]()
    before: tuple[tuple[str, str], ...] = ()
    for n in range(4):
        chat = log.advance(context(history, see=f"place {n}", guidance=f"hint {n}"))
        assert chat.messages()[: len(before)] == before
        log.answer(chat, "go north")
        before = chat.messages()
        history.append(step("go north", f"place {n}", f"place {n + 1}"))


def test_a_turn_stays_as_it_was_sent_with_its_hint_and_its_list():
    messages = play(Conversations(), "go north", "take coin").messages()
    assert [role for role, _ in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert "hint 0" in messages[1][1]
    assert "1. go north" in messages[1][1]
    assert "hint" not in messages[-1][1]


def test_what_changes_every_turn_is_in_the_last_message_only():
    plain = play(Conversations(), "go north").messages()
    log = Conversations()
    chat = log.advance(context(see="place 0", guidance="hint 0"))
    log.answer(chat, "go north")
    now = context([step("go north", "place 0", "place 1")], see="place 1", guidance="new", replan="a loop")
    hinted = log.advance(now)
    assert hinted.messages()[:-1] == plain[:-1]
    assert "new" in hinted.messages()[-1][1]


def test_the_system_message_has_nothing_that_changes():
    """So a prefix cache keeps it from turn to turn, and from episode to episode."""
    builder = PromptBuilder(instructions="Be brief.")
    changed = context(guidance="a hint", replan="a loop", forbidden={"take coin": "it is glued"}, actions=("wait",))
    elsewhere = context([step("go north")], see="a cellar")
    assert builder.system(context()) == builder.system(changed) == builder.system(elsewhere)


def test_a_retry_replaces_the_open_turn():
    log = Conversations()
    log.answer(log.advance(context()), "take coin", (1,))
    retried = log.advance(context(forbidden={"take coin": "it is glued"}))
    assert len(retried.turns) == 1
    assert "it is glued" in retried.messages()[-1][1]
    assert retried.turns[0].answer is None


def test_an_action_that_the_loop_replaced_is_not_taken_for_sampled():
    log = Conversations()
    log.answer(log.advance(context()), "take coin", (1, 2))
    chat = log.advance(context([step("go north")]))
    assert (chat.turns[0].answer, chat.turns[0].sampled) == ("go north", None)


def test_sampled_tokens_are_kept():
    assert [turn.sampled for turn in play(Conversations(), "go north", "take coin").turns] == [(0,), (1,), None]


def test_another_process_rebuilds_the_conversation_from_the_steps():
    history = [step("go north", "place 0", "place 1"), step("take coin", "place 1", "place 2")]
    chat = Conversations().advance(context(history, see="place 2"))
    assert [turn.answer for turn in chat.turns] == ["go north", "take coin", None]
    assert "place 1" in chat.messages()[3][1]


def test_episodes_do_not_share_a_conversation():
    log = Conversations()
    play(log, "go north", thread="a")
    assert len(play(log, thread="b").turns) == 1
    assert len(log.advance(context(thread="a")).turns) == 1, "a second attempt continued the first one's conversation"


def test_a_thread_that_begins_anew_has_the_system_message_of_its_new_task():
    log = Conversations()
    play(log, "go north")
    anew = log.advance(context(state=State("a hall", task="open the gate")))
    assert "open the gate" in anew.system
    assert "find the coin" not in anew.system


def test_an_episode_of_another_agent_under_the_same_thread_is_not_continued():
    """Two customers' agents may share a model and number their threads alike."""
    log = Conversations()
    play(log, "go north")
    others = [replace(step("go north", "place 0"), pre=State("the safe of another customer", task="refund"))]
    chat = log.advance(context(others, see="the hall", state=State("the hall", task="refund")))
    shown = str(chat.messages())
    assert "place 0" not in shown
    assert "hint 0" not in shown
    assert "find the coin" not in shown
    assert "the safe of another customer" in shown


def test_without_a_thread_nothing_is_kept():
    log = Conversations()
    log.advance(context(thread=""))
    assert not log._open


def test_only_the_newest_conversations_are_kept():
    log = Conversations(most=2)
    for name in "abc":
        log.advance(context(thread=name))
    assert [*log._open] == ["b", "c"]


def test_old_turns_are_left_out_in_blocks_so_that_the_prefix_rarely_changes():
    log = Conversations(PromptBuilder(history=4))
    starts = [play(log, *["go north"] * n).omitted for n in range(12)]
    assert starts == [0, 0, 0, 0, 0, 3, 3, 3, 6, 6, 6, 9]
    assert len(log.advance(context([step("go north")] * 11)).messages()) <= 2 + 2 * 4


def test_the_result_of_the_last_action_is_in_the_next_message():
    lost = replace(step("take coin"), diagnosis=Diagnosis(True), reward=1.0)
    assert "reward +1" in Conversations().advance(context([lost])).messages()[-1][1]


TOOLS = {"look": {"type": "object"}}


@pytest.mark.parametrize(("tools", "actions", "calls"), [(TOOLS, (), True), (TOOLS, ACTIONS, False), ({}, (), False)])
def test_calls_are_asked_for_where_there_are_tools_and_no_list(tools, actions, calls):
    system = PromptBuilder().system(replace(context(), tools=tools, actions=actions))
    assert ("one tool call as JSON" in system) is calls


def test_a_rebuilt_message_shows_the_result_of_the_step_before():
    told = Step(State("a hall"), "ring", State("a hall", feedback="It rings."), Diagnosis(True))
    messages = Conversations().advance(context([told, step("go north", "a hall")], see="a room")).messages()
    assert ["It rings." in text for role, text in messages if role == "user"] == [False, True, False]


def test_a_hint_that_still_holds_is_not_repeated():
    """However many turns ago it was shown."""
    log, history = Conversations(), list[Step]()
    for n in range(3):
        chat = log.advance(context(history, see=f"place {n}", guidance="look up"))
        log.answer(chat, "go north")
        history.append(step("go north", f"place {n}", f"place {n + 1}"))
    assert ["look up" in text for role, text in chat.messages() if role == "user"] == [True, False, False]


@pytest.mark.parametrize(("history", "repeated"), [(9, False), (1, True)])
def test_what_was_learned_is_repeated_once_its_turn_is_left_out(history, repeated):
    told = Step(State("a hall"), "ask", State("a hall", feedback="The key is red."), Diagnosis(True))
    taken = [told, step("go north", "a hall"), step("go north", "a room")]
    working = WorkingMemory.of(State("a hall"), taken)
    chat = Conversations(PromptBuilder(history=history)).advance(context(taken, see="an attic", working=working))
    assert ("<notes>\nThe key is red." in chat.messages()[-1][1]) is repeated


def test_a_fork_of_an_unknown_or_a_shorter_conversation_is_rebuilt():
    log = Conversations()
    play(log, "go north")
    for parent, turns in (("nobody", 1), ("t", 9)):
        log.fork(parent, "new", turns)
        assert "new" not in log._open
