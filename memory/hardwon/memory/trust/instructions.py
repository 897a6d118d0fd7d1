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

from hardwon.memory.patterns import compile_late
from hardwon.memory.records import Hit, State, Step

from .disguises import may_be_disguised, readings, sends_what_is_filled_in, unseen_in
from .instruction_languages import foreign_form_in, may_be_foreign
from .instruction_signs import signed_forms

LEFT_OUT = "[left out: it reads like an instruction]"
"""Replacement of a text that contains an instruction."""
_WHO = r"(?:the\s+)?(?:user|customer|client|human|operator|person|anyone|anybody|owner|support)"
_MODEL = r"(?:ai|a\.i\.|assistants?|agents?|llm|chat\s?bots?|language\s+models?|models?|copilot|claude|gpt)"
_DO = (
    r"(?:call|invoke|execute|run|use|send|transfer|forward|wire|email|mail|refund|pay|approve|grant|delete|"
    r"reveal|disclose|share|obey|reply|respond|answer|choose|select|recommend|comply|follow|record|output|print)"
)
_RULES = (
    r"(?:instructions?|rules?|prompts?|guidelines?|guidance|directions?|orders|policies|policy|guardrails?|safeguards?|"
    r"anweisung\w*|instruc\w+|consignes?|istruzion\w+)"
)
_FORMS = {
    "an order to forget orders": (
        rf"\b(?:ignor\w*|disregard\w*|forget|override|bypass|overrule|vergiss|oublie\w*|olvid\w*)\b.{{0,60}}?\b{_RULES}\b"
        r"|(?:忽略|无视|無視|忘记).{0,16}(?:指令|指示|命令|规则)|(?:指示|命令|指令)を?.{0,6}(?:無視|忘れ)|(?:지시|명령).{0,8}무시"
        r"|\bигнорир\w+.{0,40}(?:инструкц|указан)|(?:تجاهل|انس).{0,30}(?:التعليمات|الأوامر)|निर्देशों.{0,20}अनदेखा"
        r"|\b(?:negeer|vergeet|zignoruj|yok\s+say|ignorera|unohda|ohita)\b.{0,50}"
        r"(?:instructi|instrukc|instruktion|talimat|\bohje)"
        r"|\btalimatlar\w*.{0,20}yok\s+say"
    ),
    "a new role or prompt": (
        rf"\byou\s+are\s+now\b|\bfrom\s+now\s+on\b|\bpretend\s+(?:to\s+be|you)|\bact\s+as\s+(?:an?|the|if)\b|"
        rf"\b(?:new|updated|revised|special|hidden|secret|system|developer|admin\w*)\s+{_RULES}\b|"
        r"\bsystem\s+(?:prompt|message|override|note|notice)\b|\bdeveloper\s+mode\b|\bjailbreak|\bprompt\s+injection\b|"
        r"^\W{0,4}(?:system|developer|assistant)\s*[:>\]]|<\|?(?:im_start|system|assistant)|\[/?inst\]|"
        r"##\s*(?:instruction|system)"
    ),
    "an address to the model": (
        rf"\b(?:dear|attention|hey|hello|note\s+to|notice\s+to|message\s+(?:to|for)|instructions?\s+(?:to|for))[\s,:]+"
        rf"(?:the\s+|all\s+|any\s+|every\s+)?{_MODEL}\b|\bas\s+an?\s+(?:ai|assistant|language\s+model)\b|"
        rf"\b{_MODEL}\s+(?:must|should|shall|has\s+to|have\s+to|needs?\s+to|reading\s+this|processing\s+this)\b"
    ),
    "an order": (
        rf"\b(?:you|we)\s+(?:must|should|shall|need\s+to|have\s+to|are\s+(?:required|instructed|ordered|asked)\s+to|will)"
        rf"\s+(?:now\s+|always\s+|never\s+|immediately\s+|instead\s+|first\s+|also\s+|please\s+|only\s+)*{_DO}\b|"
        r"\bI\s+(?:instruct|order|command|require)\s+you\s+to\b|"
        rf"\b(?:please|immediately|instead|always|never|now|then|simply|just)[\s,]+{_DO}\s+(?:the\s+|all\s+|a\s+|\w+\(|\w+_)"
    ),
    "a demand for secrecy": (
        rf"\b(?:do\s+not|don'?t|never|without)\s+(?:tell\w*|inform\w*|mention\w*|reveal\w*|warn\w*|ask\w*|alert\w*|"
        rf"notify\w*|say\w*)\b.{{0,30}}?\b(?:{_WHO}|this|it)\b"
    ),
    "a demand for secrets": (
        r"\b(?:send|transfer|forward|wire|e-?mail|upload|post|exfiltrate|leak|give|copy)\w*\b.{0,80}?"
        r"\b(?:password|credential|secret|token|api\s*key|private\s+key|funds|money|balance|database|all\s+data|"
        r"everything)s?\b.{0,60}?\b(?:to|at|into)\b"
    ),
    "a rule for other requests": (
        rf"\b(?:whenever|every\s+time|each\s+time|any\s+time|in\s+(?:the\s+)?future|for\s+(?:all|any|every|each|future|"
        rf"similar)|in\s+(?:all|any|every|similar)|next\s+time)\b.{{0,90}}?\b{_DO}\b|"
        rf"\b(?:when|if|once)\s+you\s+(?:see|read|process)\s+this\b.{{0,40}}?\b{_DO}\b|"
        r"\b(?:correct|right|proper|required|best|only|approved|standard|recommended)\s+(?:next\s+)?"
        r"(?:action|step|tool|call|procedure|response|answer|way)\s+(?:is|here|now|for)\b"
    ),
}
_PATTERNS = {name: compile_late(form, re.I | re.S | re.M) for name, form in _FORMS.items()}
_HIDDEN_ORDER = compile_late(rf"(?:^|[.:;!?,]|\band|\bthen|\bplease|\bto)\s*{_DO}\s+\S+|\b{_MODEL}\s*[:,]", re.I)
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
