"""Detection of injected instructions: recorded text that addresses the model instead of describing the environment.

The detection uses patterns, not a model. They cover the usual forms in several languages and under the usual disguises
(see `instruction_languages` and `disguises`): orders to ignore instructions, new roles, demands for secrecy, demands to
send secrets, and rules for all future requests. A clever paraphrase passes. The main defense is that words of untrusted
writers are never shown; these patterns also keep plain cases out of trusted text.
"""

import re
import unicodedata
from dataclasses import replace
from functools import lru_cache

from hardwon.memory.patterns import compile_late, fill_parts, read_table
from hardwon.memory.records import Hit, State, Step

from .disguises import may_be_disguised, readings, sends_what_is_filled_in, unseen_in
from .instruction_languages import foreign_form_in, may_be_foreign
from .instruction_signs import signed_forms

LEFT_OUT = "[left out: it reads like an instruction]"
"""Replacement of a text that contains an instruction."""
_TABLE = read_table(__file__, "instructions.toml")
_PATTERNS = {
    name: compile_late(fill_parts("".join(lines), _TABLE["parts"]), re.I | re.S | re.M)
    for name, lines in _TABLE["forms"].items()
}
_HIDDEN_ORDER = compile_late(
    fill_parts(r"(?:^|[.:;!?,]|\band|\bthen|\bplease|\bto)\s*{DO}\s+\S+|\b{MODEL}\s*[:,]", _TABLE["parts"]), re.I
)
"""An order or an address to the model in invisible text, such as an HTML comment, where even a weak form is
suspicious."""
_HIDDEN = {"Cf", "Cc", "Co", "Cs"}
_JOINTS = compile_late(r"(?<=[a-z])(?=[A-Z])|[_\-]+")
_TAGS = {0xE0000 + code: code for code in range(0x20, 0x7F)}
"""Invisible tag characters (U+E0020 to U+E007E), which a model reads as ASCII."""
_LOOKALIKES = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u04bb\u051b\u051d\u03bf\u03b1\u03bd\u03b9\u03c1\u0131\u0261",
    "aeopcyxijsdhqwoavipig",
)
"""Cyrillic and Greek letters that look like Latin ones."""


def instruction_in(text: str) -> str:
    """Return the kind of instruction that a text contains, in a few words, or an empty string."""
    # the text may come from an attacker: bound the work of the patterns
    return _detect(text[:20_000]) if text else ""


@lru_cache(maxsize=8192)
def _detect(text: str) -> str:
    """Return the kind of instruction in a text, in its invisible parts or in its decoded forms."""
    # lazily, the cheapest first: a text is decoded only if nothing was found in it as it is
    return _detect_plain(text) or _detect_invisible(text) or next(filter(None, map(_detect_plain, readings(text))), "")


def _detect_plain(text: str) -> str:
    """Return the kind of instruction in a text as it is, without decoding."""
    # tags become letters first: they are format characters, which are removed below
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text.translate(_TAGS))
    if plain.isascii():
        return _form_in(plain) or foreign_form_in(plain)
    plain = "".join(char for char in plain if char in "\n\t" or unicodedata.category(char) not in _HIDDEN)
    latin = _as_latin(plain)
    # both forms: Latin letters reveal lookalikes, but break the words of other scripts
    return _form_in(plain) or _form_in(latin) or foreign_form_in(plain) or foreign_form_in(latin)


def _detect_invisible(text: str) -> str:
    """Return the kind of instruction in the invisible parts of a text, where any order counts as one."""
    if sends_what_is_filled_in(text):
        return "a demand for secrets"
    return "an order" if any(map(_HIDDEN_ORDER.search, unseen_in(text))) else ""


def _as_latin(text: str) -> str:
    """Return a text without accents, and with letters of other scripts as their Latin lookalikes."""
    bare = "".join(char for char in unicodedata.normalize("NFKD", text) if unicodedata.category(char) != "Mn")
    return bare.translate(_LOOKALIKES)


def _form_in(plain: str) -> str:
    """Return the name of the first English pattern that matches, or an empty string."""
    signed = signed_forms(plain)
    if not signed:
        return ""
    joined = _JOINTS.sub(" ", plain)  # tool names contain words, too: ignore_previous_instructions
    for name in signed:
        pattern = _PATTERNS[name]
        if pattern.search(plain) or (joined != plain and pattern.search(joined)):
            return name
    return ""


def without_instructions(hit: Hit) -> Hit | None:
    """Return a hit on a trusted step without texts that contain instructions, or None if its action does."""
    step = hit.what
    # one test of all texts together: almost every step passes it
    if not isinstance(step, Step) or _is_surely_clean("\n".join(_texts_of(step))):
        return hit
    if instruction_in(step.action):
        return None
    pre, post = _clean_state(step.pre), _clean_state(step.post)
    diagnosis = step.diagnosis
    if instruction_in(diagnosis.evidence):
        diagnosis = replace(diagnosis, evidence=LEFT_OUT)
    if diagnosis.diff and instruction_in(str(diagnosis.diff)):
        diagnosis = replace(diagnosis, diff={})
    if pre is step.pre and post is step.post and diagnosis is step.diagnosis:
        return hit
    return replace(hit, what=replace(step, pre=pre, post=post, diagnosis=diagnosis))


def _texts_of(step: Step) -> list[str]:
    """Return all texts of a step that are checked."""
    diagnosis = step.diagnosis
    texts = [step.action, diagnosis.evidence, str(diagnosis.diff) if diagnosis.diff else ""]
    for state in (step.pre, step.post):
        texts += (state.observation, state.feedback, state.task, state.location, *state.notes)
        if state.facts:
            texts.append(str(dict(state.facts)))
    return texts


@lru_cache(maxsize=8192)
def _is_surely_clean(text: str) -> bool:
    """Return whether a text has no sign of an instruction or disguise; then no part of it has one either."""
    return text.isascii() and not (may_be_disguised(text) or signed_forms(text) or may_be_foreign(text))


def _clean_state(state: State) -> State:
    """Return a state without texts that contain instructions; the signature stays."""
    texts = {name: getattr(state, name) for name in ("observation", "feedback", "task", "location")}
    flagged = {name: LEFT_OUT for name, text in texts.items() if instruction_in(text)}
    notes = tuple(note for note in state.notes if not instruction_in(note))
    facts = state.facts
    if facts and instruction_in(str(dict(facts))):
        facts = {}
    if not flagged and len(notes) == len(state.notes) and facts is state.facts:
        return state
    return replace(state, **flagged, notes=notes, facts=facts, signature=state.signature)
