"""A value that depends on what a request names is said with what decides it, in every door."""

from dataclasses import replace

import pytest
from tests.apps.test_fixes_in_doors import DOORS, GIFT, ask, find_advice, is_error

from hardwon.memory import ExperienceLibrary, Item
from hardwon.runtime.environments.calls import Call, build_state
from hardwon.runtime.guidance.abstraction import abstract_verdict
from hardwon.runtime.guidance.base import lines_of
from hardwon.runtime.integrations.tool_episode import ToolEpisode
from hardwon.runtime.loop import holdout
from hardwon.runtime.loop.tuning import TUNING

CHANNELS = {"A": "card", "B": "gift_card", "C": "bank"}
ORDERS = [f"{letter}-{number}" for number in (17, 42, 56, 81) for letter in CHANNELS]
UNREADY, CLOSED = "Error: the order is not ready", "Error: this channel is closed"
LESSON = (
    'Before `refund`, call `check_order` with the same order. In `refund`, use to="card" if order begins with "A", '
    'to="gift_card" if order begins with "B", to="bank" if order begins with "C". This worked in 12 of 12 episodes'
)


def record(
    library, order, *, is_checked=False, needs_check=True, channels=CHANNELS, task="", hides_results=True,
    told="delivered",
):  # fmt: skip
    """Record a request with a wrong channel first, with or without a call that came too early."""
    right = channels[order[0]]
    wrong = next(channel for channel in (PAID if right in PAID else CHANNELS.values()) if channel != right)
    made = [("refund", {"to": wrong}, UNREADY)] if needs_check and not is_checked else []
    made += [
        ("check_order", {}, told),
        ("refund", {"to": wrong}, CLOSED),
        ("refund", {"to": right}, "refunded"),
    ][not needs_check :]
    calls = [Call(name, {"order": order, **given}, r, r if is_error(r) else "") for name, given, r in made]
    episode = ToolEpisode(library, task or ask(order), hides_results=hides_results)
    for n in range(len(calls)):
        episode.add_answer(episode.state(calls[:n]), calls[: n + 1])
    library.record(episode.trajectory(True, ending="success"))
    library.evolve()


@pytest.fixture(autouse=True)
def nothing_is_withheld(monkeypatch):
    monkeypatch.setattr(holdout, "TUNING", replace(TUNING, withhold=0.0))
    monkeypatch.setattr("tests.apps.test_fixes_in_doors.ORDERS", ())


def test_only_the_case_of_the_request_is_said(library, monkeypatch):
    for order in ORDERS:
        record(library, order)
    monkeypatch.setattr("tests.apps.test_fixes_in_doors.LAST", "B-99")
    hint = next(iter(DOORS["middleware"](library, (GIFT,))))
    assert 'In `refund`, use to="gift_card" if order begins with "B". This worked' in hint
    assert "bank" not in hint


def test_it_is_recalled_where_others_began_with_the_call_before(library):
    """Requests in other words, of which nobody made the failing call first."""
    library.add(Item("remedy", "Zebras", steps=("check_order(order={1})", "refund(order={1})"), repairs="tool_error"))
    episode = ToolEpisode(library, "My parcel B-98 never came.", hides_results=True)
    episode.add_answer(episode.state(()), (Call("check_order", {"order": "B-98"}, "delivered"),))
    library.record(episode.trajectory(True, ending="success"))
    recalled = library.recall(build_state("My parcel B-99 never came.", (), ""))
    assert [hit.what.title for hit in recalled.items] == ["Zebras"]


@pytest.mark.parametrize("door", DOORS)
def test_the_value_is_said_with_what_decides_it(tmp_path, door):
    with ExperienceLibrary.open(tmp_path / "library.db", "hashing") as library:
        for n, order in enumerate(ORDERS):
            record(library, order, is_checked=n % 3 == 0)
        hint = next(iter(list(DOORS[door](library, (GIFT,)))))
        (remedy,) = library.items.find()
    assert f"{remedy.title}. {remedy.body}" == LESSON
    # no case is for orders that begin with Z
    assert (
        find_advice(hint) == "Before `refund`, call `check_order` with the same order. This worked in 12 of 12 episodes"
    )
    assert not any(order in hint for order in ORDERS)


def read_remedies(library, task):
    """Return the lines about calls that a request gets before its first call."""
    state = build_state(task, (), "")
    return [line.text for line in lines_of(library.recall(state), state) if "remedy" in line.text]


def test_a_value_of_some_requests_is_no_lesson_for_others(library):
    """What worked after a failure in three requests is not said to all of them once it fails in others."""
    for order in ORDERS:
        record(library, order)
    (remedy,) = library.items.find(["remedy"])
    assert "depends" not in remedy.title
    assert remedy.steps == ("check_order(order={1})", "refund(order={1}, to={2})")


@pytest.mark.parametrize("orders", [ORDERS[:5], [f"{n}-X" for n in range(12)]], ids=["few", "nothing decides"])
def test_without_enough_evidence_there_is_no_choice(library, orders):
    values = ("card", "bank", "gift_card", "bank")
    for n, order in enumerate(orders):
        record(library, order, channels={order[0]: values[n % 4]})
    assert not any("begins with" in item.title for item in library.items.find())


PAID = {"reversal": "a credit card", "voucher": "a gift card", "transfer": "an invoice"}


def ask_paid(order, channel):
    return f"I paid order {order} with {PAID[channel]} and want my money back."


def record_paid(library, episodes=12, **given):
    """Record requests of which the words decide the channel."""
    for n in range(episodes):
        channel = list(PAID)[n % 3]
        record(library, str(4000 + n), channels={"4": channel}, task=ask_paid(4000 + n, channel), **given)


@pytest.mark.parametrize("channel", PAID)
def test_the_value_is_said_that_fits_the_words_of_the_request(library, channel):
    record_paid(library)
    (remedy,) = library.items.find()  # and no guardrail or warning: with the right channel, the call works
    assert [remedy.title.count(f'to="{each}" if') for each in PAID] == [1, 1, 1]
    (line,) = read_remedies(library, ask_paid(99, channel))
    assert "call `check_order` with the same order" in line
    assert [f'to="{each}"' in line for each in PAID] == [each == channel for each in PAID]


def test_an_imported_remedy_may_have_no_steps(library):
    library.add(
        Item(
            "remedy",
            "Ask",
            "Ask first.",
            forbids="refund(order={1}, to={2})",
            repairs="tool_error",
            source="experience",
            writer="rules",
        )
    )
    record_paid(library)
    assert "Ask" in [item.title for item in library.items.find(["remedy"])]


def test_a_request_with_other_words_gets_what_every_request_needs(library):
    record_paid(library)
    (line,) = read_remedies(library, "I paid order 99 in cash and want my money back.")
    assert line == "- remedy: Before `refund`, call `check_order` with the same order. This worked in 12 of 12 episodes"


def test_without_a_case_and_a_needed_call_nothing_is_said(library):
    record_paid(library, needs_check=False)
    state = build_state("I paid order 99 in cash and want my money back.", (), "")
    lines = lines_of(library.recall(state), state, everything=True)
    assert not any("remedy" in line.text for line in lines)


def test_a_trusted_reader_gets_the_case_of_its_request_alone(library):
    """That every word may be shown does not mean that the request says it."""
    record_paid(library)
    state = build_state(ask_paid(99, "voucher"), (), "")
    text = "\n".join(line.text for line in lines_of(library.recall(state), state, everything=True))
    assert [f'to="{each}" if' in text for each in PAID] == [False, True, False]


def test_without_what_decides_only_the_call_before_it_is_said(library):
    for n in range(12):
        record(library, str(4000 + n), channels={"4": list(PAID)[n * n % 3]})
    titles = [item.title for item in library.items.find()]
    assert "Before `refund`, call `check_order` with the same order" in titles
    # the channel that worked in a third of the requests is for those in which the other one failed
    assert not [title for title in titles if title.startswith(("Use ", "First ", "Do not "))]


@pytest.mark.parametrize("needs_check", [True, False])
def test_a_choice_that_newer_requests_contradict_is_retired(library, needs_check):
    record_paid(library, needs_check=needs_check)
    assert any("if the text says" in item.title for item in library.items.find())
    for n in range(24):  # from now on, another channel works
        channel = list(PAID)[n % 3]
        right = list(PAID)[(n + 1 + n % 2) % 3]
        task = ask_paid(5000 + n, channel)
        record(library, str(5000 + n), channels={"5": right}, task=task, needs_check=needs_check)
    assert not any("if the text says" in item.title for item in library.items.find())


def test_a_value_may_fit_what_a_trusted_result_says(library):
    for n in range(12):
        channel = list(PAID)[n % 3]
        told = f"paid with {PAID[channel]}"
        record(library, str(4000 + n), channels={"4": channel}, told=told, hides_results=False)
    assert [item.title.count("if the text says") for item in library.items.find(["remedy"])] == [3]


def test_words_far_behind_in_a_long_request_are_not_compared(library):
    for n in range(12):
        channel = list(PAID)[n % 3]
        task = f"Hello. {'I have been a customer for years. ' * 80}{ask_paid(4000 + n, channel)}"
        record(library, str(4000 + n), channels={"4": channel}, task=task)
    assert not any("if the text says" in item.title for item in library.items.find())


@pytest.mark.parametrize("right", [("reversal", "voucher", "voucher"), ("reversal", "voucher", "transfer")])
def test_nothing_is_forbidden_or_warned_of_whose_value_was_wrong(library, right):
    """Only the value failed, so the call is not what fails; a value that is right elsewhere has its condition."""
    for n in range(18):
        channel = right[n * n * n % 5 % 3]
        task = ask_paid(4000 + n, channel)
        record(library, str(4000 + n), channels={"4": channel}, task=task, needs_check=False)
    assert not library.items.find(["guardrail", "warning"])


def test_a_guardrail_goes_once_its_value_is_right_for_other_requests(library):
    for n in range(24):  # the first half needs other channels, and tries this one first
        channel = ("voucher", "transfer", "reversal", "reversal")[n % 2 + n // 12 * 2]
        task = ask_paid(6000 + n, channel)
        record(library, str(6000 + n), channels={"6": channel}, task=task, needs_check=False)
        if n == 11:
            (guardrail,) = library.items.find(["guardrail"])
            assert guardrail.forbids == "refund(order={1}, to=reversal)"
    assert not library.items.find(["guardrail"])


def test_that_a_call_which_just_failed_fails_again_is_forbidden_whatever_its_values(library):
    for n in range(12):
        wrong, right = (
            ("refund", {"order": str(6000 + n), "to": "cash"}),
            ("refund", {"order": str(6000 + n), "to": "card"}),
        )
        record_calls(library, ask(f"N-{n}"), (*wrong, CLOSED), (*wrong, CLOSED), (*wrong, CLOSED), (*right, "done"))
    assert any("again" in (item.condition or {}) for item in library.items.find(["guardrail"]))


def record_calls(library, task, *calls):
    """Record a request with calls of the form (name, arguments, result)."""
    made = [Call(name, given, result, result if is_error(result) else "") for name, given, result in calls]
    episode = ToolEpisode(library, task, hides_results=True)
    for n in range(len(made)):
        episode.add_answer(episode.state(made[:n]), made[: n + 1])
    library.record(episode.trajectory(True, ending="success"))
    library.evolve()


def record_tools(library, *, right=None, needs_check=False, episodes=12):
    """Record requests of which the words decide the tool."""
    for n in range(episodes):
        channel = list(PAID)[n % 3]
        best = (right or {}).get(channel, channel)
        wrong = next(each for each in PAID if each != best)
        order = {"order": str(7000 + n)}
        early = [(f"refund_{best}", order, UNREADY), ("check_order", order, "done")] if needs_check else []
        calls = (
            *early,
            (f"refund_{wrong}", order, CLOSED),
            (f"refund_{best}", order, "done"),
            ("close", order, "done"),
        )
        record_calls(library, ask_paid(7000 + n, channel), *calls)


@pytest.mark.parametrize("needs_check", [False, True])
@pytest.mark.parametrize("channel", PAID)
def test_the_tool_is_said_that_fits_the_words_of_the_request(library, channel, needs_check):
    record_tools(library, needs_check=needs_check)
    before = "First `check_order(order={order})`, then" if needs_check else "Use"
    word = PAID[channel].split()[1]
    lines = read_remedies(library, ask_paid(99, channel))
    assert lines == [
        f'- remedy: {before} `refund_{channel}(order={{order}})` if the text says "{word}". '
        "This worked in 4 of 4 episodes"
    ]


def test_calls_without_what_they_need_do_not_count_against_a_tool(library):
    """Neither does another call that every request needs, and one request that used two tools."""
    for n, channel in enumerate([*PAID] * 2):
        order = {"order": str(8000 + n)}
        calls = ((f"refund_{channel}", order, UNREADY), ("close", order, "done"))
        record_calls(library, ask_paid(8000 + n, channel), *calls)
    record_tools(library, needs_check=True)
    order = {"order": "8100"}
    both = tuple((f"refund_{each}", order, "done") for each in ("reversal", "voucher"))
    record_calls(
        library, "I paid order 8100 with a credit card and a gift card.", ("check_order", order, "done"), *both
    )
    record_tools(library, needs_check=True)
    assert "`refund_voucher(order={order})` if the text" in "".join(read_remedies(library, ask_paid(99, "voucher")))


def test_an_argument_that_the_words_decide_is_no_tool(library):
    """Two tools that fail by turns, with a value that fits the words."""
    for n in range(18):
        channel = list(PAID)[n % 3]
        given = {"order": str(7000 + n), "to": channel}
        first, second = ("pay", "send") if n * n % 5 % 2 else ("send", "pay")
        record_calls(library, ask_paid(7000 + n, channel), (first, given, CLOSED), (second, given, "done"))
    assert not any(item.title.startswith("Use `") and " if the text" in item.title for item in library.items.find())


def test_an_agent_may_have_many_tools(library):
    """Only a few of them ever work; more than the letters that stand for them while they are compared."""
    record_tools(library)
    for n in range(30):
        order = {"order": str(8000 + n)}
        task = ask_paid(8000 + n, "voucher")
        record_calls(
            library,
            task,
            (f"try_{'abcdefghijklmnopqrstuvwxyz'[n % 26] * (1 + n // 26)}", order, CLOSED),
            ("refund_voucher", order, "done"),
        )
    titles = [item.title for item in library.items.find(["remedy"])]
    assert 'Use `refund_voucher(order={order})` if the text says "gift"' in titles


def test_commands_of_a_shell_are_no_tools(library):
    for n in range(12):
        programs = ["npm", "pnpm"] if n % 2 else ["pnpm", "npm"]
        shell = [("Bash", {"command": f"{program} test"}) for program in programs]
        task = f"Test the {'old' if n % 2 else 'new'} frontend, number {n}."
        record_calls(library, task, (*shell[0], "Error: no such script"), (*shell[1], "done"))
    assert not any("if the text says" in item.title for item in library.items.find())


def test_a_request_that_no_tool_fits_is_told_none(library):
    record_tools(library)
    assert len(library.items.find(["remedy"])) == 3
    assert read_remedies(library, "I paid order 99 in cash and want my money back.") == []


def test_a_tool_that_newer_requests_contradict_is_retired(library):
    record_tools(library)
    record_tools(library, right=dict(zip(PAID, [*list(PAID)[1:], "reversal"], strict=True)), episodes=30)
    record_tools(library, episodes=30)
    assert not any("if the text says" in item.title for item in library.items.find())


def test_tools_that_are_not_tried_in_place_of_each_other_are_not_compared(library):
    """Each request needs the second of them, whatever it says of the first one."""
    for n in range(12):
        channel = list(PAID)[n % 3]
        order = {"order": str(7000 + n)}
        record_calls(library, ask_paid(7000 + n, channel), (f"note_{channel}", order, "done"), ("close", order, "done"))
    assert not any("if the text says" in item.title for item in library.items.find())


DATES = {"words": "March {n}", "iso": "2027-03-{n:02d}", "slashes": "{n}/3/2027"}


def record_dates(library, wrong, right, episodes=10):
    for n in range(1, episodes + 1):
        tries = [(wrong, "Error: bad date"), (right, "done")]
        calls = (("book", {"name": f"N-{n}", "date": DATES[kind].format(n=n)}, result) for kind, result in tries)
        record_calls(library, f"Book a table for N-{n}", *calls)


def test_the_form_is_said_in_which_a_value_works(library):
    record_dates(library, "words", "iso")
    (line,) = read_remedies(library, "Book a table for N-77")
    assert line == '- remedy: In `book`, write date as "####-##-##" (# is a digit). This worked in 10 of 10 episodes'


@pytest.mark.parametrize(("wrong", "right"), [("iso", "iso"), ("iso", "words")])
def test_a_form_that_fails_as_well_or_has_words_of_requests_is_not_said(library, wrong, right):
    record_dates(library, wrong, right)
    titles = [item.title for item in library.items.find()]
    assert not any("####" in title for title in titles)


def test_a_value_is_said_to_come_from_a_result(library):
    for n, name in enumerate(["Mia Torres", "Olaf Berg", "Zoe Chan", "Ann Wood", "Bo Lind", "Ida Falk"]):
        found = f'{{"id": "U-93{n}0"}}'
        calls = [("reset", {"user": name}, "Error: no such user"), ("find_user", {"name": name}, found)]
        record_calls(library, f"Reset the password of {name}.", *calls, ("reset", {"user": f"U-93{n}0"}, "done"))
    (line,) = read_remedies(library, "Reset the password of Jo Hart.")
    assert line == (
        "- remedy: Before `reset`, call `find_user`. In `reset`, copy user from a result. "
        "This worked in 6 of 6 episodes"
    )


def record_payments(library, amounts):
    for n, amount in enumerate(amounts):
        order, result = {"order": str(4000 + n)}, "done"
        pay = "pay", {**order, "amount": amount}
        early = [(*pay, "Error: payment declined"), ("approve", order, result)] if amount > 100 else []
        record_calls(library, ask(f"{amount} for N-{n}"), *early, (*pay, result))


def test_a_call_is_warned_of_for_the_numbers_that_need_another_one_first(library):
    record_payments(library, [40, 250, 75, 320, 90, 510, 30, 180, 60, 405])
    (line,) = read_remedies(library, ask("N-99"))
    title = "Before `pay`, call `approve` with the same order if amount is above 90"
    assert line == f"- remedy: {title}. This worked in 5 of 5 episodes"
    state = build_state(ask("N-99"), (), "")
    verdicts = [library.check(state, f'pay(order="4100", amount={amount})') for amount in (250, 80)]
    assert [verdict.cause.startswith(title) for verdict in verdicts] == [True, False]


def test_a_call_that_works_at_the_second_try_is_said_to(library):
    for n in range(6):
        sync = "sync", {"store": f"S-{n}"}
        record_calls(library, f"Synchronize S-{n}.", (*sync, "Error: 503 Service Unavailable"), (*sync, "done"))
    (line,) = read_remedies(library, "Synchronize S-9.")
    assert line.startswith("- remedy: If `sync(store={store})` fails (unavailable), call it again. ")
    assert line.endswith("the next call worked in 4 of 4")


def test_a_value_that_works_in_place_of_several_is_said_once(library):
    for n, limit in enumerate([500, 100, 200] * 4):
        search = {"query": f"N-{n}"}
        tries = (
            ("search", {**search, "limit": limit}, "Error: bad request"),
            ("search", {**search, "limit": 50}, "done"),
        )
        record_calls(library, f"Find N-{n}.", *tries)
    (line,) = read_remedies(library, "Find N-99.")
    assert line == "- remedy: In `search`, use limit=50. This worked in 12 of 12 episodes"
    verdicts = [library.check(build_state("Find N-99.", (), ""), f'search(query="N-99", limit={n})') for n in (400, 50)]
    assert [verdict.cause for verdict in verdicts] == ["In `search`, use limit=50", ""]


def test_a_value_fits_the_number_of_another_argument(library):
    for n, nights in enumerate([1, 12, 3, 9, 2, 15, 5, 20]):
        rates = ["short", "long"] if nights > 7 else ["long", "short"]
        calls = [("book", {"guest": f"N-{n}", "nights": nights, "rate": rate}) for rate in rates]
        record_calls(library, f"A room for N-{n}", (*calls[0], "Error: no such rate"), (*calls[1], "done"))
    (line,) = read_remedies(library, "A room for N-99")
    assert 'use rate="short" if nights is 5 or less, rate="long" if nights is 9 or more.' in line


def test_a_call_without_what_the_values_that_work_share_is_warned_of(library):
    for n, wrong in enumerate(["bug", "ui", "db"] * 4):
        calls = [("refund", {"order": str(5000 + n), "to": to}) for to in (wrong, f"{wrong}/triage")]
        record_calls(library, ask(f"N-{n}"), (*calls[0], "Error: refused"), (*calls[1], "done"))
    (line,) = read_remedies(library, ask("N-99"))
    advice = 'In `refund`, end to with "/triage"'
    assert line == f"- remedy: {advice}. This worked in 12 of 12 episodes"
    state = build_state(ask("N-99"), (), "")
    verdicts = [library.check(state, f'refund(order="5100", to="{to}")') for to in ("bug", "bug/triage")]
    assert [verdict.cause for verdict in verdicts] == [advice, ""]
    assert all(verdict.allowed for verdict in verdicts)
    said = abstract_verdict(library, verdicts[0], state, 'refund(order="5100", to="bug")').cause
    assert said == f"{advice}. This worked in 12 of 12 episodes"


def test_a_rule_that_changed_is_learned_anew(library):
    """The folder moves, and the old one fails from then on."""
    advice = []
    for n in range(60):
        paths = [f"{n}.log", f"/old/logs/{n}.log", f"/new/logs/{n}.log"][n >= 24 :][:2]
        calls = (("tail", {"path": path}, "done" if path == paths[-1] else "Error: no such file") for path in paths)
        record_calls(library, f"Show {n}.log.", *calls)
        advice.append("".join(read_remedies(library, "Show 99.log.")))
    assert "/old/logs/" in advice[23]
    assert not any("/old/logs/" in line for line in advice[32:])
    assert all('begin path with "/new/logs/"' in line for line in advice[44:])
