import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from hardwon.memory import State
from hardwon.memory.situations.familiarity import location
from hardwon.memory.situations.keys import (
    ANY_SAID,
    CONTEXT_KEY,
    SIGHT,
    TOLD,
    Attempt,
    Situation,
    content_words,
    guard_keys,
    has_sight,
    parse_action,
    pattern_of,
    words,
)
from hardwon.memory.situations.refinements import BEST, CASE, FULL_NAME, REFINED, SLOT, list_slots, name_in_full
from hardwon.memory.situations.scripts import FULL_STOPS
from hardwon.memory.situations.tuning import TUNING

KITCHEN = State(
    "You see a stove. The stove is hot. A raw potato lies beside an oven.",
    task="cook the potato",
    notes=("To roast a potato cook it in the oven.", "Slice the carrot."),
    facts={"front": "stove", "inventory": ["a raw potato", "a knife"]},
)
STRUCTURAL = frozenset({"raw", "hot", "cook", "slice", "see"})


@pytest.mark.parametrize(
    ("action", "verb", "template", "slots"),
    [
        ("look around", "look", "look {1}", ("around",)),
        ("open red door", "open", "open {1}", ("red door",)),
        ("list --region eu-west", "list", "list --region {1}", ("eu-west",)),
        ("list --region=us-east", "list", "list --region {1}", ("us-east",)),
        ("deploy api --env=prod", "deploy", "deploy api --env {1}", ("prod",)),
        ("make --jobs=4 test", "make", "make test", ()),
        ("git --no-pager log", "git", "git log --no-pager", ()),
        ("aws ec2 describe --region=us-east", "aws", "aws ec2 describe --region {1}", ("us-east",)),
        ("put dirty dress in laundry basket", "put", "put {1} in {2}", ("dirty dress", "laundry basket")),
        ("Take Key From Box", "take", "take {1} from {2}", ("key", "box")),
        ("go to kitchen", "go", "go to {1}", ("kitchen",)),
        ("forward", "forward", "forward", ()),
        ("", "", "", ()),
        ("   ", "", "", ()),
        ('search(query="red shoes", limit=3)', "search", "search(query={1}, limit={2})", ("red shoes", "3")),
        ("fs.read(path='/a/b, c.txt')", "fs.read", "fs.read(path={1})", ("/a/b, c.txt",)),
        ("ping()", "ping", "ping()", ()),
    ],
)
def test_an_action_is_taken_apart(action, verb, template, slots):
    """Commands are split at prepositions, calls at their named arguments."""
    parsed = parse_action(action)
    assert (parsed.verb, parsed.template, parsed.slots) == (verb, template, slots)


def test_a_pattern_keeps_the_last_word_of_each_argument():
    """`put dirty dress in basket` and `put dress in basket` are one pattern."""
    assert pattern_of("put dirty dress in laundry basket") == "put dress in basket"
    assert pattern_of("put dirty dress in laundry basket", keep_first=True) == "put {1} in basket"


def test_words_are_lower_case_and_in_order():
    """Punctuation separates words, hyphens and apostrophes do not."""
    assert words("The well-lit Room's 2nd door!") == ("the", "well-lit", "room's", "2nd", "door")


def test_words_may_be_of_any_script():
    """A library in another language has words too."""
    assert words("Öffne die Tür, 日本語!") == ("öffne", "die", "tür", "日本", "本語")


def test_function_words_name_nothing():
    """What remains of a task is what it is about."""
    assert content_words("put the spoon in the drawer") == {"put", "spoon", "drawer"}


def test_keys_go_from_general_to_special():
    """From any step, over the action's template, to its words in this context."""
    keys = Situation(KITCHEN, STRUCTURAL).keys("cook raw potato in oven", "tried 0 to unknown")
    assert keys[0] == "*"
    assert keys[1] == "cook {1} in {2}"
    assert keys[2] == "cook {1} in {2} | tried 0 to unknown"
    assert keys[CONTEXT_KEY].startswith("cook {1} in {2} | tried 0 to unknown | ")
    assert [key for key in keys if not key.startswith(REFINED)][-1].startswith(
        "cook potato in oven | tried 0 to unknown"
    )
    assert len(set(keys)) == len(keys)


def test_the_last_keys_add_the_task_and_the_text():
    """They are the last ones, so that each can be compared with what all others predict."""
    state = State("The oven is hot. A potato lies here.", task="cook 1 potato for order 48213")
    keys = Situation(state, frozenset(["hot", "lies"])).keys("cook raw potato in oven")
    assert [key for key in keys if key.startswith(REFINED) and not key.startswith((FULL_NAME, SLOT, CASE, BEST))] == [
        "=goal cook raw potato in oven | 1 cook order potato",  # a long number may be an id
        "=near cook raw potato in oven | 1 cook order potato | 1: lies; 2: hot | nothing told",
        "=sight cook raw potato in oven | [T] hot lies",
        "=both cook raw potato in oven | 1 cook order potato | [T] hot lies",
    ]
    many = State(" ".join(f"word{n}" for n in range(TUNING.max_refined + 1)), task="")
    every = frozenset(many.observation.split())
    assert not any(key.startswith("=") for key in Situation(many, every).keys("go")), "such a text hardly recurs"


def test_what_stands_in_one_place_of_the_text_has_keys_of_its_own():
    """Alone, and with all that the text shows: a word too rare for a context, and the size of a number."""
    text = "Ticket 48213 from Ann. Subject: payroll. It waits 45 days. Priority: normal."
    form = {"ticket", "subject", "days", "waits", "priority", "normal"}
    structural = frozenset(form | {f"{word}+" for word in form} | {"payroll"})  # payroll is in every sixth text
    keys = Situation(State(text, task="answer within 20 hours"), structural).keys("send to finance")
    sight = "days normal payroll priority subject ticket waits"
    assert [key for key in keys if key.startswith(SLOT)] == [
        "=slot:within# send to finance | within: from 20",
        "=slot:ticket# send to finance | ticket: from 40000",
        "=slot:ticket send to finance | ticket: ann",
        "=slot:subject send to finance | subject: payroll",
        "=slot:waits# send to finance | waits: from 40",
    ]
    assert f"=case:subject send to finance | {sight} | subject: payroll" in keys
    assert keys[-2] == f"=case:waits# send to finance | {sight} | waits: from 40"
    many = State(f"{text} Room: 3. Days: 4.", task="answer within 20 hours")
    assert not any(key.startswith(SLOT) for key in Situation(many, structural).keys("send")), (
        "such a text hardly recurs"
    )


def test_the_last_key_has_the_form_of_the_task_and_what_each_sentence_shows():
    """Whether the car or you are at home is the same to a set of words."""
    structural = frozenset(["home", "away", "meters"])

    def key(text, task="wash the car at Dorfin", action="walk to Dorfin"):
        return Situation(State(text, task=task), structural).keys(action)[-1]

    text = "You are at home. The car is at home. Dorfin is 50 meters away."
    assert key(text) == "=best walk to {1} | wash {1} at {2} | [T] away meters; [T] home; home"
    assert key("Dorfin is 9 meters away. The car is at home. You are at home.") == key(text)
    other = key(text.replace("car", "van").replace("Dorfin", "Elka"), "wash the van at Elka", "walk to Elka")
    assert other == key(text), "names do not recur"
    assert key(text.replace("You are at home", "You are at Dorfin")) != key(text)
    assert key(text, "weigh the car at Dorfin") != key(text)
    assert not key(text, task="").startswith(BEST)
    many = " ".join(f"word{n}" for n in range(TUNING.max_refined + 1))
    assert not Situation(State(many, task="go"), frozenset(many.split())).keys("go")[-1].startswith(BEST)


def test_what_the_agent_called_before_is_no_slot():
    texts = ["> pay(amount=300)\nWaits: 5 days.", "Waits: 5 days."]
    own, without = [
        [key for key in Situation(State(text, task="pay")).keys("send") if key.startswith(SLOT)] for text in texts
    ]
    assert own == without
    assert any("waits" in key for key in own)


def test_a_slot_with_nothing_else_in_sight_has_one_key():
    keys = Situation(State("", task="pay 40")).keys("send")
    assert [key for key in keys if key.startswith((SLOT, CASE))] == ["=slot:pay# send | pay: from 40"]


def test_a_fact_that_is_a_number_has_a_size():
    bill = State("A bill.", facts={"amount": 129.5, "is urgent": True, "inventory": ["7 keys"]})
    keys = Situation(bill).keys("pay")
    assert [key for key in keys if key.startswith(SLOT)] == ["=slot:amount# pay | amount: from 100"]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("$1,250.50", "from 1000"),
        ("0.07", "from 0.07"),
        ("-3", "from -3"),
        ("12,5", "from 10"),
        ("0", "from 0"),
        ("３００", "from 300"),
    ],
)
def test_the_size_of_a_number_is_its_first_digit_and_its_magnitude(text, size):
    assert list_slots([text], frozenset()) == {"#": size}


@pytest.mark.parametrize("text", ["on 2026-11-30", "at 12:30", "v1.2.3", "i-3fa4", "10.0.0.1", "item b12"])
def test_dates_times_versions_and_ids_have_no_size(text):
    assert not list_slots([text], frozenset())


def test_a_long_text_between_the_words_of_the_form_is_no_slot():
    form = frozenset(["customer", "order"])
    text = "customer hello dear good people order"
    assert not list_slots([text], form)
    assert list_slots([text.replace("people ", "")], form) == {"customer": "hello dear good"}
    assert list_slots(["ann wrote order"], form) == {"order": "ann wrote"}, "named by what follows"


def test_each_key_with_full_names_follows_the_key_of_its_kind():
    """Two of them: with the flags alone, and with the surroundings and notes; `potato` alone has none."""
    for notes in (KITCHEN.notes, ()):
        keys = Situation(replace(KITCHEN, notes=notes), STRUCTURAL).keys("cook the raw potato in oven", "tried 0")
        named = [at for at, key in enumerate(keys) if key.startswith(FULL_NAME)]
        assert len(named) == 2
        for at in named:
            assert keys[at].removeprefix(FULL_NAME) == keys[at - 1].replace("cook potato", "cook raw potato")
            assert at > CONTEXT_KEY
    keys = Situation(KITCHEN, STRUCTURAL).keys("cook potato in oven", "tried 0")
    assert not any(key.startswith(FULL_NAME) for key in keys)


@pytest.mark.parametrize(
    ("action", "name"),
    [
        ("take the left door", "take left door"),
        ("cut Yellow Wire", "cut yellow wire"),
        ("use key 3", "use key 3"),
        ("use key no. 3", "use key 3"),
        ("use key #3", "use key 3"),
        ("go to cabinet 12", "go to cabinet 12"),
        ("put small mushroom in tin box", "put small mushroom in tin box"),
        ("pour cup of green tea in mug", "pour cup of green tea in mug"),
        # no more than the pattern
        ("take door", ""),
        ("look", ""),
        ("", ""),
        ("..", ""),
        # ids, free text and secrets
        ("refund order 88231", ""),
        ("find a big old rusty green door", ""),
        ("call [redacted:phone] number", ""),
        ('search(query="red shoes")', ""),
        ('get_user(user_id="mia_li_3668")', ""),
        # calls and shell commands keep their labels in the pattern, but not the numbers of things
        ('open(door="left door")', ""),
        ("click[Buy Now]", ""),
        ("git commit -m x", ""),
        ('open(door="sinkbasin 1")', "open(door=sinkbasin 1)"),
        ("click[item 12]", "click[item 12]"),
    ],
)
def test_an_action_is_named_in_full_if_attributes_tell_its_things_apart(action, name):
    assert name_in_full(action) == name


def test_the_context_of_an_argument_is_near_it():
    """Structural and task words beside the argument count; what is far away or unknown does not."""
    assert Situation(KITCHEN, STRUCTURAL).context("open stove") == "1: hot see; front stove"


def test_words_of_the_task_become_one_mark():
    """Which thing the task names differs from episode to episode; that it is named does not."""
    assert "[T]" in Situation(KITCHEN, STRUCTURAL).context("examine raw")


def test_what_is_not_shown_has_no_context():
    """An argument the text does not name is marked so."""
    assert Situation(KITCHEN, STRUCTURAL).context("open fridge") == "1: -; front stove"


LOBBY = State("The lobby is quiet. Kim asks for a refund.", {"mood": "calm"}, task="serve the guests")
QUIET = frozenset({"quiet", "refund", "lobby"})


def test_what_the_text_shows_belongs_to_the_context_of_an_action_that_it_does_not_name():
    """Nothing else tells one situation of `wave` from another, so its last key has the words of the text."""
    keys = Situation(LOBBY, QUIET).keys("ring bell")
    assert keys[CONTEXT_KEY].endswith("1: -; 0: lobby quiet refund; mood calm | nothing told")
    assert Situation(LOBBY, QUIET).keys("wave")[CONTEXT_KEY].endswith("0: lobby quiet refund; mood calm | nothing told")
    named = Situation(LOBBY, QUIET).keys("call kim")[CONTEXT_KEY]
    assert SIGHT not in named


@pytest.mark.parametrize("action", ["refund_order(order=7)", "click[buy]"])
def test_what_was_said_before_a_call_is_no_situation(action):
    """Its arguments tell one call from another."""
    assert SIGHT not in Situation(LOBBY, QUIET).keys(action)[CONTEXT_KEY]


def test_a_text_of_many_words_shows_nothing_as_a_whole():
    """Such a text hardly recurs. One word less, and all of them count, in whatever order they stand."""
    words = [f"word{n}" for n in range(TUNING.max_refined + 1)]
    situations = [Situation(State(" ".join(text)), frozenset(words)) for text in (words, words[1:], words[:0:-1])]
    many, most, turned = (situation.read_full_context(parse_action("wave")) for situation in situations)
    assert many == SIGHT
    assert most == turned == SIGHT + " ".join(sorted(words[1:]))


@pytest.mark.parametrize(
    ("context", "expected"),
    [("0: cold", True), ("1: -; 0: cold; mood calm", True), ("0: ", True), ("1: -", False), ("10: cold", False)],
)
def test_a_context_has_what_the_text_shows_or_not(context, expected):
    assert has_sight(context) is expected


def test_without_structural_words_only_the_task_counts():
    """Before enough episodes were seen, no word belongs to the structure."""
    assert Situation(KITCHEN).context("open stove") == "1: ; front stove"


def test_what_was_told_of_an_argument_is_found():
    """The notes are read around the argument as the observation is."""
    assert Attempt(Situation(KITCHEN, STRUCTURAL), "eat carrot").note_words == ("1 slice",)


def test_nothing_is_told_without_notes():
    """No notes: no words, no marks."""
    silent = Attempt(Situation(State("You see a carrot.")), "eat carrot")
    assert silent.note_words == silent.all_note_words == silent.marks == ()


def test_marks_say_how_the_notes_speak_of_an_argument():
    """With this verb, with another one, or not at all."""
    situation = Situation(KITCHEN)
    assert Attempt(situation, "slice carrot").marks == ("1 told",)
    assert Attempt(situation, "eat carrot").marks == ("1 other",)
    assert Attempt(situation, "eat fork").marks == ("1 unnamed",)


def test_flags_say_what_speaks_of_an_argument():
    """Named by the task, listed by a fact, told of by a note."""
    situation = Situation(State("x", task="take the knife", facts={"inventory": ["a knife", "a map"]}))
    assert situation.flags(parse_action("give knife to fork")) == "1:T,inventory 2:"


def test_facts_are_part_of_the_keys():
    """Where the environment gives facts, another fact is another key."""
    one = Situation(State("x", facts={"front": "wall"})).keys("go forward")
    other = Situation(State("x", facts={"front": "clear"})).keys("go forward")
    assert one[1] == other[1]
    assert one[-1] != other[-1]


def test_a_listing_is_reduced_to_what_the_task_names():
    """`seen` says where the thing of the task is, whatever else is seen."""
    state = State("x", task="go to the red ball", facts={"seen": ["grey box: 1 left", "red ball: 2 ahead"]})
    assert any("seen TT 2 ahead" in key for key in Situation(state).keys("forward"))


def test_guard_keys_go_from_wide_to_narrow():
    """Failures are counted for the template and for the very arguments, where this is shown."""
    keys = guard_keys(Situation(State("A lamp is lit.", task="x"), frozenset({"lit"})), "open old lamp")
    assert keys[0].startswith("! open {1} @ around ")
    assert keys[1].startswith("! open lamp @ around ")


def test_another_process_gives_the_same_keys():
    """Experience is filed alike whatever seed a process hashes with."""
    code = textwrap.dedent(
        """
        from hardwon.memory import State
        from hardwon.memory.situations.keys import Situation, guard_keys
        state = State("A red, hot and big lamp is lit near a door.", task="lit red lamp", notes=("A lamp is hot.",),
                      facts={"has": ["b lamp", "a"], "n": 3, "front": "wall"})
        situation = Situation(state, frozenset("hot big lit near a red".split()))
        print(situation.keys("put red lamp in door"), guard_keys(situation, "put red lamp in door"))
        """
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True)
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout != b""


@pytest.mark.timeout(30)
@pytest.mark.parametrize("text", [" " * 20_000, "word " * 4_000, "\n" * 20_000, "lamp. " * 3_000])
def test_a_long_text_takes_no_time(text):
    """An observation of 20,000 characters is read in one pass."""
    assert Situation(State(text, task="lamp", signature="-")).keys("open lamp")


def test_a_listing_that_the_text_does_not_show_is_part_of_the_context():
    """What an agent holds decides what it can make, and only the facts tell it."""
    bare = Situation(State("You are in a workshop.", {"has": []}))
    with_wood = Situation(State("You are in a workshop.", {"has": ["wood"]}))
    assert (bare.context("craft table"), with_wood.context("craft table")) == ("1: -", "1: -; has wood")


@pytest.mark.parametrize("facts", [{"has": ["wood"]}, {"seen": ["tree: 2 ahead"]}])
def test_a_listing_that_the_text_shows_or_that_has_values_is_not(facts):
    """The text around the argument says it better; a view changes with every step."""
    state = State("You are in a workshop. You carry some wood.", facts)
    assert Situation(state).context("craft table") == "1: -"


def test_an_argument_without_a_word_is_nowhere_shown():
    assert Situation(State("You are in ..", task="go up")).context("cd(folder='..')") == "1: -"


@pytest.mark.parametrize(
    ("observation", "notes", "said"),
    [
        ("Simon says, 'touch your nose'.", (), True),
        ("Simon says, “Touch your nose”!", (), True),
        ("It is dark.", ("Now touch your nose twice.",), True),
        ("Simon says, 'touch your ear'.", (), False),
        ("Touch it. Your nose itches.", (), False),
        ("Your nose: touch nothing.", (), False),
    ],
)
def test_an_action_that_the_text_names_is_marked(observation, notes, said):
    """The returns of such actions say what following the text is worth, also for actions that were never made."""
    keys = Situation(State(observation, notes=notes)).keys("touch your nose", "tried 0 to unknown")
    assert keys[0] == (ANY_SAID if said else "*")
    assert ("said" in keys[3]) is said
    assert Situation(State("wait")).keys("wait")[0] == "*"


def test_articles_do_not_hide_that_an_action_is_named():
    situation = Situation(State("It is dark.", notes=("Chop the red onion", "grill an onion")))
    assert situation.says("chop red onion")
    assert situation.says("grill onion")
    assert not situation.says("grill red onion")
    assert not situation.says("slice red onion")
    assert not situation.says("onion"), "a word alone is no instruction"


def test_what_was_told_of_a_thing_is_more_specific_than_its_kind():
    """A pepper that is to be sliced is not cooked because other peppers were to be roasted."""
    keys = Situation(KITCHEN, STRUCTURAL).keys("eat fresh carrot", "tried 0 to unknown")
    silent = Situation(replace(KITCHEN, notes=()), STRUCTURAL).keys("eat fresh carrot", "tried 0 to unknown")
    kind = next(at for at, key in enumerate(keys) if key.startswith("eat carrot | tried 0"))
    assert CONTEXT_KEY < kind < keys.index("eat {1} | 1 slice")
    last = [key for key in silent if not key.startswith(REFINED)][-1]
    assert last.startswith("eat carrot | tried 0"), "without notes, only the exact context is more specific"


def test_words_that_notes_tell_of_a_thing_have_a_key_of_them_all():
    """It counts the steps with any of these words, and is missing if the notes do not name the thing."""
    keys = Situation(KITCHEN, STRUCTURAL).keys("cook potato")
    at = keys.index(f"cook {{1}}{TOLD}")
    assert keys[at + 1].startswith("cook {1} | 1 ")
    assert not any(key.endswith(TOLD) for key in Situation(KITCHEN, STRUCTURAL).keys("cook lamp"))
    silent = State(KITCHEN.observation, task=KITCHEN.task)
    assert not any(key.endswith(TOLD) for key in Situation(silent, STRUCTURAL).keys("cook potato"))


@pytest.mark.parametrize("stop", [". ", "\n", *FULL_STOPS])
def test_a_sentence_ends_at_the_full_stop_of_its_script(stop):
    """The words around an argument are those of its own sentence; a place is called by its first sentence."""
    state = State(f"炉子热了{stop}土豆生的", task="做土豆")
    around = Situation(state).whole.read_context(("土豆",))
    assert "生的" in around
    assert "热了" not in around
    assert location(state).rstrip(FULL_STOPS + ".") == "炉子热了"
