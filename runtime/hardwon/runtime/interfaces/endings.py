"""Read how a run ended: it was completed, it failed, or it was not finished.

    read_ending([..., {"role": "assistant", "text": "Done.", ...}])                      # "completed"
    read_ending([..., {"role": "assistant", "text": "Do", "unfinished": "length", ...}]) # "unfinished"

This is the only rule: the doors and the importers call it, and `ToolEpisode.judge` makes the outcome of it. Only a
whole answer of the model completes a run. What says that more was to come is no success, whatever the calls did.
"""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from hardwon.memory.patterns import compile_late

Ending = Literal["completed", "unfinished", "failed"]

_COMPLETED = frozenset([
    "stop", "end_turn", "stop_sequence", "stop_sequences", "stop_token", "completed", "complete", "done", "success",
    "succeeded", "finished", "finish", "ok", "eos", "eos_token", "eos_found", "end", "end_of_turn", "end_of_text",
    "endoftext", "normal",
])  # fmt: skip
_FAILED = frozenset(["error", "failed", "failure", "errored", "fail", "crashed"])
_UNFINISHED = compile_late(
    r"(?:\A|_)(?:abort|await|blocked|cancel|deadline|expired|filter|incomplete|in_progress|interrupt|killed|length|limit|"
    r"max|not_(?:complete|done|finished)|partial|pause|pending|queued|refus|requires_action|running|stopped|"
    r"time(?:d_?out|out)|truncated|unfinished|waiting)|\A(?:tool_(?:calls|use)|function_call)\Z|"
    r"(?:limit|length|window)_(?:reached|exceeded)\Z"
)
"""What a status says of a run that was not finished."""
_REASONS = ("finish_reason", "stop_reason", "done_reason", "finishreason", "stopreason", "native_finish_reason")
"""Fields with the reason for which a model stopped, of which only a few words mean that it was finished."""
_FLAGS = ("truncated", "interrupted", "aborted", "cancelled", "canceled", "incomplete", "__interrupt__", "is_truncated")
_WHOLE = ("done", "completed", "finished", "is_complete", "is_finished")
"""Flags that are false if more was to come."""
_PARTS = ("response_metadata", "additional_kwargs", "metadata", "generation_info", "message", "kwargs")
_LISTS = ("choices", "generations")
"""Fields of a model's answer that may say how it ended."""
_SILENT = ("thinking", "redacted_thinking", "reasoning", "reasoning_content")
_CALLS = ("tool_use", "tool_call", "function_call")
_INTERRUPTS = compile_late(
    r"\A\W*(?:\w+\.)*"
    r"(?:GraphInterrupt|NodeInterrupt|ParentCommand|(?:Node)?CancelledError|KeyboardInterrupt|GeneratorExit|SystemExit)\b"
)
"""An error by which a framework stops a run that is to go on or hands it over, or that somebody stopped."""
_UNITS = r"(?:steps?|turns?|iterations?|rounds?|(?:tool |model )?calls?|recursions?|tokens?|attempts?|budget|time)"
_LIMIT = compile_late(
    r"\W*(?:error: )?"
    r"(?:(?:the |this |your )?(?:agent|run|task|execution)\W+(?:has |was )?|i(?:\W+have|'ve)? |we (?:have )?)?(?:"
    r"(?:was |am )?(?:not able|unable) to finish\b|(?:could|can|did)(?: ?not|n['’]t) finish\b|"
    r"(?:reached|exceeded|hit|used up|r[au]n out of) (?:(?:the|its|my|our) )?"
    rf"(?:(?:max\w*|limit)\b[^.!?\n]{{0,20}}?\b)?{_UNITS}\b|"
    rf"(?:reached|exceeded|hit) (?:the |its |my )?{_UNITS} limit|"
    rf"(?:(?:the )?max(?:imum)?(?: number of)? |'[^']{{1,200}}' |\w+ )?{_UNITS} ?(?:limits? |budget )?"
    r"(?:of \d+ |\(?\d+\)? )?"
    r"(?:was |were |has been |have been )?(?:reached|exceeded|exhausted)(?! (?!before|while|for|so|and)\w)|"
    rf"stopp(?:ed|ing)(?: due to|: | after \d+ {_UNITS}| because (?:of )?(?:the |a )?(?:max|limit))|"
    r"incomplete[:.!]|timed out\W*\Z)|"
    r"(?:Sorry, need more steps to process this request|API Error\b|Error code: \d{3}\b|Internal server error\b|"
    r"(?:llm|model|api) (?:call|request) failed\b|rate limit (?:exceeded|reached)\b|"
    r"context (?:window|length)(?: limit)? (?:exceeded|reached)\b|This model's maximum context length\b|"
    r"(?:still )?(?:waiting for|awaiting) (?:(?:your|user|human|the) )?(?:approval|confirmation|input|permission)\b|"
    r"I(?:'m| am) sorry,? (?:but )?I (?:can(?:no|')t|am (?:unable|not able) to) (?:assist|comply|help)\b|"
    r"\W?(?:request|generation|response|run|operation|conversation|stream) (?:was |has been )?"
    r"(?:aborted|stopped|interrupted|cancell?ed|disconnected|timed out)\b|"
    r"user (?:aborted|cancell?ed|interrupted) the\b)",
    re.IGNORECASE,
)
"""Beginnings of answers that a framework writes in the place of the model when it ends a run, and of a refusal."""
_TOKENS = compile_late(
    r"<[|｜][^<>\s]{1,60}[|｜]>|\A\s*<(think(?:ing)?|reasoning)>.*?(?:</\1>|\Z)|"
    r"<(\w{1,40})>\s{0,9}</\2>|"
    r"\A\W{0,3}(?:no (?:content|output|response|text)|empty|truncated|null|undefined|NaN|N/A|TODO|TBD)\W{0,3}\Z",
    re.DOTALL | re.IGNORECASE,
)
"""Special tokens, thoughts, and words in the place of a text, which a server leaves in a text that is no answer."""
_UNREAD_CALL = compile_late(
    r"^[ \t]*(?:<(?:tool_call|tool_use|function_calls?|invoke|function)\b[^<>\n]{0,200}>|\[TOOL_CALLS\]|"
    r"<[|｜](?:tool[▁_]calls?|python_tag)[^<>\n]{0,60}[|｜]>)|\AThought:[^\n]*\n+Action:",
    re.MULTILINE,
)
"""A call at the beginning of a line that the server should have read."""

_FENCE = compile_late(r"\A\s*```\w*\n(.*?)```\s*\Z", re.DOTALL)
_SENTENCES = compile_late(r"(?<=[.!?…])\s+|(?<=[。！？])|\n+")
_QUESTION = compile_late(r"\w[\w)\]\"'”’»」]{0,9}\s{0,2}[?？][)\]\"'”’»」*_\s]{0,9}\Z")
_CONTENT = compile_late(r"[:;：；] ?[\w'\x22„“«「]")
"""What follows this mark says more than the words before it announce."""
_POLITE = compile_late(
    r"\W{0,9}(?:sure|ok(?:ay)?|alright|great|hello|hi|hey|thanks|thank you|i see|i understand|understood|got it|sorry|"
    r"of course|certainly|absolutely|i(?:['’]d| would) be happy|hmm|hallo|gerne|hola|claro|bonjour|bien sûr|ciao|olá|"
    r"привет|хорошо|好的|你好|はい)\b[^.!?。]{0,40}[.!。…]{0,3}\s*\Z",
    re.IGNORECASE,
)
_GIVES_UP = compile_late(
    r"\W{0,9}(?:(?:(?:i['’]?m )?(?:so |very )?sorry|unfortunately|i apologi[sz]e|however)\W{1,3}(?:but )?)?(?:"
    r"(?:i|we) (?:(?:was|were|am|are)(?: not able|n['’]t able| unable) to|could(?: not|n['’]t)|"
    r"can(?:not| not|['’]t)|failed to) "
    r"(?:complete|finish|fulfil+|comply|help|assist|proceed|continue|do (?:this|that|it)|"
    r"process (?:this|that|the|your) request)\b|"
    r"(?:the |this |your )?(?:task|request|job) (?:could not|couldn['’]t|cannot|can['’]t) be "
    r"(?:completed|done|finished|fulfilled|processed)\b|please try again\b|"
    r"(?:i['’]?ve|i have|you['’]?ve|you have) (?:hit|reached|exceeded) (?:my|your|the) \w+ limit\b|"
    r"ich (?:konnte|kann) .{1,80} nicht (?:abschließen|beenden|erledigen|fertigstellen)\b|"
    r"ich kann (?:dabei|damit|ihnen) .{0,20}nicht (?:weiter)?helfen|"
    r"je (?:n['’]ai pas pu|ne peux pas|ne suis pas en mesure de) (?:terminer|finaliser|achever|vous aider|continuer)\b|"
    r"(?:lo siento\W{1,3})?no (?:he podido|pude|puedo) (?:completar|terminar|finalizar|ayudar\w*|continuar)\b|"
    r"non (?:sono riuscit[oa] a|posso) (?:completare|terminare|aiutar\w*)\b|"
    r"não (?:consegui|posso) (?:completar|concluir|terminar|ajud\w+)\b|"
    r".{0,30}(?:完了できません|お手伝いできません|无法完成|無法完成|无法协助|無法協助|无法提供帮助))",
    re.IGNORECASE,
)
"""What an agent says that did not do its task; what it did not find is an answer."""
_FIRST = r"(?:(?:ok(?:ay)?|alright|sure|great|perfect|first|now|next|then|so|hmm)[,!.]? )?"
_WILL = r"i(?:['’]ll| will| need to| have to| must|['’]m going to| am going to)"
_LOOK = (
    r"(?: now| first| next| just| quickly| also)? (?:(?:take a |have a )?look|check|search|find|verify|query|run|read|"
    r"open|inspect|examine|investigate|fetch|retrieve|review|analy[sz]e|try|think|(?:start|begin) (?:by|with)|continue|"
    r"proceed|see (?:if|what|whether|how|the)|get (?:the|that|this|started|back to)|explore|gather|collect|determine|"
    r"figure|identify|locate|load|call|let you know|pull up|go ahead|apply|create|edit|fix|implement|install|update|"
    r"write)\b(?! is\b)"
)
_NEXT = compile_late(
    rf"\W{{0,9}}(?:{_FIRST}(?:let me|let['’]s|let us|{_WILL}){_LOOK}|{_FIRST}i(?:['’]ll| will) (?:now|first|next) |"
    rf"(?:(?:great|ok(?:ay)?),? )?(?:now|next),? (?:{_WILL}|let me) |"
    r"i(?:['’]m| am) (?:now |still )?(?:looking|checking|searching|working|waiting) |"
    r"(?:still )?(?:working on|looking into) (?:it|this|that)\W{0,9}\Z|\w{3,20}ing\b[^:;]{0,60}(?:\.\.\.|…)\W{0,9}\Z|"
    r"(?:give me|one|just a) (?:a )?(?:moment|second|minute)(?: to|,? please|[,.!…]|\Z)|"
    r"(?:please )?hold (?:on|while)\b|stand by\W{0,9}\Z|"
    r"ich (?:werde|will|muss) (?:jetzt|nun|zuerst|als nächstes)\b|ich (?:prüfe|überprüfe|schaue|sehe|suche) |"
    r"lassen sie mich\b|(?:einen )?(?:moment|augenblick)(?:,? bitte|[,.!…])|"
    r"(?:voy|vou) (?:a )?(?:comprobar|buscar|revisar|consultar|verificar|ver|checar)\b|(?:déjame|permítame|deixe-me)\b|"
    r"u[nm] momento(?:,? por favor|[,.!…])|un instant[,.!… ]|laissez-moi\b|"
    r"je vais (?:maintenant |d['’]abord )?(?:vérifier|chercher|rechercher|consulter|regarder|examiner)\b|"
    r"(?:fammi|mi lasci)\b|ora (?:controllo|verifico|cerco)\b|sto (?:controllando|verificando|cercando)\b|"
    r"(?:сейчас|давайте)(?: я)? (?:про|посмотр|найд|поищ)|подождите\b|正在(?:检查|查看|搜索|查询|处理|为您)|稍等|"
    r"(?:让我|我(?:将|会|来|先|现在|这就))[^。，,]{0,6}(?:检查|查看|看|查|搜索|确认|找|分析)|"
    r"[^。、,]{0,40}(?:(?:確認|検索|調査)(?:いた)?します|調べます|お待ちください)|"
    r"[^.,]{0,40}(?:확인|검색|조회)하겠습니다|잠시만)",
    re.IGNORECASE,
)
"""Sentences that say what will be done next."""
_ASKS = compile_late(
    r"\W{0,9}(?:(?:to|before|in order to|um|para|pour|per)\b[^.,]{0,60},? (?!to\b))?(?:"
    r"(?:i|we)(?: still| will|['’]ll)? (?:need|require) (?:more|additional|further|some|your|to know|access|permission|"
    r"(?:the|an?) (?:\w+ ){0,2}(?:number|id|name|address|e-?mail|details?|information|code|date|password|file|url|link"
    r"))\b|i(?:['’]m| am) missing |(?:still )?(?:await|waiting for (?:your|the user|user|more|further))|"
    r"i (?:do not|don['’]t) have enough information\b|(?:permission|approval|user input) (?:is )?(?:needed|required)\b|"
    r"\[?\(?y(?:es)?\W{0,3}n(?:o)?\b|(?:please )?let me know (?:which|what|whether|when|your|the)\b|"
    r"(?:please|kindly) (?:provide|share|specify|clarify|confirm|supply|upload|authori[sz]e|approve|wait|stand by|"
    r"(?:give|tell|send) me|enter your)\b|"
    r"(?:please )?(?:type|enter|reply|respond|press|say) \W?\w+\W? to (?:confirm|continue|proceed)\b|"
    r"i (?:did not|didn['’]t|do not|don['’]t) understand (?:your|the|that|this)\b|"
    r"bitte (?:geben|nennen|teilen|bestätigen|warten)\b|(?:ich (?:brauche|benötige)|(?:brauche|benötige) ich)\b|"
    r"por favor,? (?:proporcione|indique|confirme|facilite|espere|forneça|informe|aguarde|confirma|dime)\b|"
    r"necesito\b|preciso (?:de|que)\b|(?:veuillez|merci de) (?:fournir|indiquer|préciser|confirmer|patienter|me)\b|"
    r"j['’]ai besoin\b|(?:per favore|per cortesia),? (?:fornisc|indic|conferm|attend)|ho bisogno\b|мне нуж|"
    r"(?:пожалуйста,? )?(?:укажите|сообщите|подтвердите|предоставьте|уточните)\b|"
    r"请(?:您)?(?:提供|告诉|告知|确认|输入|说明|稍)|我们?还?需要(?:更多|您|你|知道|确认|先|权限|[^。]{0,10}信息)|"
    r"[^。、,]{0,40}(?:を(?:教えて|入力して|提供して|確認して|お知らせ)(?:ください|いただけ)|(?:情報|許可)が必要です)|"
    r"[^.,]{0,40}(?:알려|입력해|제공해|확인해) ?(?:주세요|주십시오))",
    re.IGNORECASE,
)
"""Sentences that say what is missing, or what the reader is to tell."""


def read_word(word: Any, *, is_reason: bool = False) -> Ending | None:
    """Return what a word such as a status or a reason to stop says about a run; None if it says nothing."""
    if not isinstance(word, str) or not word.strip():
        return None
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word.strip().rpartition(".")[2])
    plain = plain.lower().replace("-", "_").replace(" ", "_").removeprefix("finish_").removeprefix("reason_")
    plain = re.sub(r"\A(stop|end_turn)\1+\Z", r"\1", plain)  # LangChain joins the reasons of chunks
    if plain in _COMPLETED:
        return "completed"
    if plain in _FAILED:
        return "failed"
    return "unfinished" if is_reason or _UNFINISHED.search(plain) else None


def read_error(error: Any) -> Ending | None:
    """Return how a run ended that has this error; an interrupt is a stop on the way."""
    if not error:
        return None
    words = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    return "unfinished" if _INTERRUPTS.match(words) else "failed"


def find_cut(record: Any, depth: int = 4) -> str:
    """Return why a model's message, a response, or a logged run is not whole; empty if it is, or does not say."""
    if isinstance(record, list):  # the choices of a response, or the generations of a batch
        record = record[0] if record else None
        return find_cut(record, depth) if depth else ""
    if not isinstance(record, Mapping):
        return ""
    named = {str(name).lower(): value for name, value in record.items()}
    reasons = ((named.get(name), True) for name in _REASONS)
    for word, is_reason in (*reasons, (named.get("status"), False)):
        if read_word(word, is_reason=is_reason) in ("unfinished", "failed"):
            return str(word)
    if details := named.get("incomplete_details") or named.get("refusal"):
        return str(details)
    if flag := next((name for name in _FLAGS if named.get(name) not in (None, False, "", [], ())), ""):
        return flag
    if any(named.get(name) is False for name in _WHOLE):
        return "incomplete"
    if read_error(named.get("error")) == "unfinished":
        return "interrupted"
    parts = [named.get(name) for name in (*_PARTS, *_LISTS)] if depth else []
    cuts = (find_cut(part, depth - 1) for part in parts if isinstance(part, Mapping | list))
    return next(filter(None, cuts), "") or _find_cut_content(record)


def _find_cut_content(record: Mapping[str, Any]) -> str:
    """Return why the content of a message is no answer: a refusal, unreadable calls, or words of a framework."""
    if record.get("invalid_tool_calls"):
        return "invalid tool calls"
    content = record.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    kinds = [block.get("type") if isinstance(block, Mapping) else "" for block in blocks]
    if kind := next((kind for kind in kinds if kind in ("refusal", "invalid_tool_call")), None):
        return str(kind)
    if blocks and all(kind in _SILENT for kind in kinds):
        return "no answer"
    if any(
        kind in _CALLS or (isinstance(block, Mapping) and "toolUse" in block)
        for kind, block in zip(kinds, blocks, strict=True)
    ):
        return "tool_use"
    parts = (block.get("text") if isinstance(block, Mapping) else block for block in blocks)
    texts = [part for part in parts if isinstance(part, str)]
    if any(map(_LIMIT.match, texts)):
        return "stopped by a limit"
    return "invalid tool calls" if any(_UNREAD_CALL.search(text) and "```" not in text for text in texts) else ""


def read_ending(messages: Sequence[Mapping[str, Any]]) -> Ending:
    """Return how a run ended, by its plain messages after the request; see `normalize_message`."""
    last: Mapping[str, Any] = messages[-1] if messages else {}
    if cut := last.get("unfinished"):
        return "failed" if read_word(cut) == "failed" else "unfinished"
    if last.get("role") == "tool":
        # Results of tools that a provider runs itself may stand before the words of the same message.
        source: Mapping[str, Any] = next((message for message in reversed(messages) if message["role"] != "tool"), {})
        return "completed" if source.get("has_answer") and not source.get("unfinished") else "unfinished"
    is_answer = last.get("role") == "assistant" and not last["calls"]
    return "completed" if is_answer and _answers(_TOKENS.sub("", str(last["text"]))) else "unfinished"


def _answers(text: str) -> bool:
    """Return whether a text says something besides empty values, questions, and what is to come."""
    inner = _FENCE.sub(r"\1", text).strip()
    if not any(map(_says_something, inner)) or inner.endswith((":", "：")):
        return False
    if inner[0] in '{["':
        with suppress(ValueError, RecursionError):
            return not _is_empty(json.loads(inner))
    sentences = [sentence for sentence in _SENTENCES.split(text) if any(map(_says_something, sentence))]
    if _NEXT.match(sentences[-1]) and not _CONTENT.search(sentences[-1]):
        return False
    open_ones = list(map(_is_open, sentences))
    return not any(open_ones) or not all(
        is_open or _POLITE.match(sentence) for is_open, sentence in zip(open_ones, sentences, strict=True)
    )


def _is_open(sentence: str) -> bool:
    """Return whether a sentence only asks, or says what is missing or to come."""
    if _CONTENT.search(sentence):
        return False
    return bool(
        _QUESTION.search(sentence[-40:]) or _NEXT.match(sentence) or _ASKS.match(sentence) or _GIVES_UP.match(sentence)
    )


def _is_empty(value: Any) -> bool:
    """Return whether a value of JSON has no text, number or truth value. A list that is named may be empty."""
    if isinstance(value, Mapping):
        return all(map(_is_empty, value.values()))
    if isinstance(value, list):
        return bool(value) and all(map(_is_empty, value))
    return value is None or (isinstance(value, str) and not any(map(_says_something, value)))


def _says_something(letter: str) -> bool:
    """Return whether a character says something: a letter, a digit or a sign, and no dots or brackets alone."""
    return letter.isprintable() and not letter.isspace() and unicodedata.category(letter)[0] != "P"


def decide(ending: Ending, *, is_broken: bool) -> bool | None:
    """Return the outcome of a run that nobody graded: success, failure, or None if it is unknown."""
    if ending == "unfinished":
        return None
    return ending == "completed" and not is_broken
