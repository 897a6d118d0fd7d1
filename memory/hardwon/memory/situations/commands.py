"""Frames of shell commands and SQL statements in the arguments of tools.

`frame` keeps the program, its subcommand and its flags, and replaces the operands: `git push --force {} {}`. The value
of an option is an operand, too: `deploy --env {}`. For SQL it keeps the statement and the table.
"""

import re
import shlex
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from .phrases import words_of
from .tuning import TUNING

_NAMES = re.compile(r"(?:.*[._])?(?:command|commands|cmd|shell|script|bash|cmdline|command_line|shell_command)", re.I)
_TOOLS = re.compile(r"(?:.*[._])?(?:bash|shell|sh|terminal|run_command|execute_command|run_shell|run_bash|exec)", re.I)
_PROGRAMS = words_of(
    """
    git npm npx yarn pnpm pip pip3 uv conda apt apt-get brew docker docker-compose podman kubectl helm cargo
    poetry systemctl terraform aws gcloud az gh python python3 node pytest sudo ssh scp curl wget bash sh rm ls
    cd pwd mkdir rmdir cp mv grep sed awk chmod chown tar ps df du rsync make cmake mvn gradle tox ruff mypy
    javac rustc gcc go cat touch head tail find echo
    """
)
_ENGLISH = words_of(
    """
    make go cat touch head tail find echo node
    """
)
"""Programs whose names are also commands in games: `touch orange`."""
_FILES = words_of(
    """
    rm ls cd pwd mkdir rmdir cp mv cat touch head tail find echo printf grep egrep rg sed awk chmod chown chgrp
    ln sort uniq wc cut diff less more vi vim nano python python3 node ruby perl bash sh zsh source . export
    unset which man tar zip unzip gzip curl wget ssh scp rsync ping open kill pkill test du df tee xxd stat file
    tree ps read set pytest mypy ruff gcc javac rustc
    """
)
"""Programs whose operands are objects, not subcommands."""
_TWO = words_of(
    """
    npm yarn pnpm docker kubectl aws gcloud az gh poetry uv pip conda helm
    """
)
_LEADS = words_of(
    """
    run compose exec get describe delete create apply logs s3 ec2 compute pr issue repo
    """
)
"""Subcommands of these programs that take a second word: `npm run build`, `docker compose up`."""
_WRAPPERS = words_of(
    """
    sudo env time nohup nice xargs npx exec command timeout
    """
)
_QUIET = re.compile(
    r"-v+|-q|-j\d*|--(?:verbose|quiet|silent|colou?r|no-colou?r|progress|no-progress|jobs)(?:=.*)?|-n?\d+"
)
"""Flags that only affect the output or the speed."""
_SUBCOMMAND = re.compile(r"[a-z][a-z:_-]*[a-z]")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_JOINT = re.compile(r"(&&|\|\||[;|&\n])")
_SHELL = re.compile(r"\s(?:--?[A-Za-z][\w-]*(?:=|\s|\Z)|&&\s|\|\|?\s|2?>>?\s?[\w./&])")
_UNSAFE = re.compile(r"[,(){}\"'`\[\]]+")
"""Characters that have a meaning in patterns, which are parsed like actions."""

_SQL = re.compile(
    r"\s*(?:(select)\b.*?\bfrom\b|(insert)\s+(?:or\s+\w+\s+)?into\b|(replace)\s+into\b|(delete)\s+from\b|(update)\b(?=.*\bset\b|.*\{\d)"
    r"|((?:create|drop|alter|truncate)\s+(?:table|view|index|database|schema)(?:\s+if\s+(?:not\s+)?exists)?))"
    r"\s+([\w.\"`\[\]]+)",
    re.I | re.DOTALL,
)
_SQL_NAMES = re.compile(r"(?:.*[._])?(?:sql|query|queries|statement|stmt|command|cmd|code|q)?", re.I)


@dataclass(frozen=True, slots=True)
class Frame:
    """A parsed command: the text `rm -rf {}` and the operands (build,)."""

    text: str
    operands: tuple[str, ...]


def is_shell_name(argument: str, tool: str) -> bool:
    """Return whether an argument with this name, or the only argument of this tool, is a shell command."""
    return bool(_NAMES.fullmatch(argument) or (not argument and _TOOLS.fullmatch(tool)))


def looks_like_shell(action: str) -> bool:
    """Return whether an action is a shell command: a program that is not an English word, or one with flags."""
    program, _, rest = action.strip().partition(" ")
    if program.startswith(("./", "/")) or (program in _PROGRAMS and program not in _ENGLISH):
        return True
    return (program in _PROGRAMS or bool(_SUBCOMMAND.fullmatch(program))) and bool(_SHELL.search(f" {rest}"))


@lru_cache(maxsize=4096)
def frame(command: str) -> Frame:
    """Return the frame of a shell command or SQL statement, with `{}` for each operand."""
    return _sql(command) or _shell(command)


def is_sql(text: str, argument: str) -> bool:
    """Return whether a text in an argument with this name is a SQL statement and not a message."""
    return bool(_SQL_NAMES.fullmatch(argument)) and _sql(text) is not None


def _sql(text: str) -> Frame | None:
    """Return the frame of a SQL statement, or None if the text is not one."""
    match = _SQL.match(text)
    if match is None:
        return None
    verb = next(group for group in match.groups()[:-1] if group).lower().split()
    joint = {"select": "from", "delete": "from", "insert": "into", "replace": "into"}.get(verb[0], "")
    table = _safe(match[match.lastindex or 0].strip('"`[]').lower())
    rest = text[match.end() :].strip(" ;\n")
    kept = [*verb, *([joint] if joint else []), table]
    return Frame(" ".join([*kept, "{}"] if rest else kept), (rest,) if rest else ())


def _shell(command: str) -> Frame:
    """Return the frame of a shell command line."""
    visible_texts: list[str] = []
    operands: list[str] = []
    pieces = _pieces(command)
    for words, joint in pieces[: TUNING.max_parts]:
        text, names = _frame_of(words)
        visible_texts += [text, joint] if joint else [text]
        operands += names
    text = " ".join(part for part in visible_texts if part)
    return Frame(text.replace(" | ", " |"), tuple(operands))  # " | " separates the parts of a key


def _pieces(command: str) -> list[tuple[list[str], str]]:
    """Return the commands of a line as words, each with the operator that joins it to the next."""
    try:
        lexer = shlex.shlex(command.replace("\n", " ; "), posix=True, punctuation_chars="|&;")
        # by default shlex drops everything after a #, which also occurs inside of arguments
        lexer.whitespace_split, lexer.commenters = True, ""
        tokens = list(lexer)
    except ValueError:  # unclosed quote
        tokens = [part for piece in _JOINT.split(command) for part in piece.split()]
    pieces: list[tuple[list[str], str]] = [([], "")]
    for token in tokens:
        if token and not token.strip("|&;"):
            pieces[-1] = (pieces[-1][0], token)
            pieces.append(([], ""))
        else:
            pieces[-1][0].append(token)
    return [piece for piece in pieces if piece[0]]


def _frame_of(words: list[str]) -> tuple[str, list[str]]:
    """Return program, subcommands and flags with `{}` for each operand, and the operands."""
    at = 0
    kept: list[str] = []
    # stop before the last word: a line such as `env` or `A=1` still needs a program
    while at < len(words) - 1 and (_ASSIGNMENT.fullmatch(words[at]) or words[at] in _WRAPPERS):
        if words[at] in _WRAPPERS:
            kept.append(words[at])
        at += 1
    program = words[at].rpartition("/")[2] if words[at].startswith("/") else words[at]
    kept.append(_safe(program))
    rest = words[at + 1 :]
    if program.startswith("python") and rest[:1] == ["-m"]:
        kept += [_safe(word) for word in rest[:2]]
        rest = rest[2:]
    elif program not in _FILES:
        rest = _subcommands(program, rest, kept)
    # sorted: models write the flags of one command in varying order
    flags = sorted({_flag(word) for word in rest if _is_flag(word)} - {""})
    operands = [operand for word in rest if (operand := _read_operand(word))]
    if len(operands) > TUNING.max_operands:
        operands = [" ".join(operands)]
    return " ".join([*kept, *flags, *["{}"] * len(operands)]), operands


def _subcommands(program: str, rest: list[str], kept: list[str]) -> list[str]:
    """Append the subcommands in `rest` to `kept`, and return the remaining words."""
    left = list(rest)
    wanted = 1
    for before, word in pairwise(("", *rest)):
        if _is_flag(word):
            continue
        if not wanted or not (word in _LEADS or _SUBCOMMAND.fullmatch(word)):
            break
        if _is_flag(before) and program not in _PROGRAMS:  # the value of an option, as far as anyone can tell
            break
        kept.append(_safe(word))
        left.remove(word)
        wanted = 1 if word in _LEADS and program in _TWO and wanted and len(kept) < TUNING.max_parts else 0
    if program in ("make", "just", "rake", "mvn", "gradle"):  # every operand is a target
        targets = [word for word in left if _SUBCOMMAND.fullmatch(word)]
        kept += [_safe(word) for word in targets]
        left = [word for word in left if word not in targets]
    return left


def _is_flag(word: str) -> bool:
    """Return whether a word is a flag."""
    return word.startswith("-") and len(word) > 1


def _read_operand(word: str) -> str:
    """Return a word that is no flag, or the value after the `=` of a flag; "" if there is none."""
    if not _is_flag(word):
        return word
    return word.partition("=")[2] if _flag(word) else ""


def _flag(word: str) -> str:
    """Return a flag without its value, or an empty string if it only affects the output."""
    return "" if _QUIET.fullmatch(word) else _safe(word.partition("=")[0])


def _safe(word: str) -> str:
    """Return a word without the characters that have a meaning in patterns."""
    return _UNSAFE.sub("", word)
