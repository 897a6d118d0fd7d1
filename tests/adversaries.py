"""Texts that make a slow pattern slow: runs of one kind of character, and loops of the pattern itself."""

import ast
import gc
import importlib.util
import pkgutil
import random
import re
import re._constants as op  # type: ignore[import-not-found]  # private, but the only parser of this dialect
import re._parser as parser  # type: ignore[import-not-found]
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from hardwon.memory.patterns import _LatePattern

RUNS = (
    *("a", "A", "1", "é", "中", "Ａ", "１", "а", "\u0301", "\u200b", "😀", " ", "\n", "\t"),
    *("a ", "a.", "=:", "a=", "aA", "1a", "a-", "a,", "a@", "\\n", '"', "'", "`", "\\", "-", "_", ".", "/", ":", "@"),
    *("<", "&lt;", "(", "[", "{", "](", "«", "# ", "go to ", "QUJD", "token=$(", "password is ", "\\a", "a--", "ab\n"),
)
"""Texts that are repeated."""
_LOOPS = 12
_ENDS = ("", "\n\x00 !")
"""Ends of a text; the second one fits no pattern, so all that was matched is tried again."""
_CATEGORIES = {
    op.CATEGORY_DIGIT: "1",
    op.CATEGORY_SPACE: " ",
    op.CATEGORY_WORD: "a",
    op.CATEGORY_NOT_SPACE: "=",
    op.CATEGORY_NOT_WORD: "-",
    op.CATEGORY_NOT_DIGIT: "a",
}
_SHORT_FORMS = {
    op.CATEGORY_DIGIT: r"\d",
    op.CATEGORY_SPACE: r"\s",
    op.CATEGORY_WORD: r"\w",
    op.CATEGORY_NOT_DIGIT: r"\D",
    op.CATEGORY_NOT_SPACE: r"\S",
    op.CATEGORY_NOT_WORD: r"\W",
}
_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)


def find_patterns(package: ModuleType) -> Iterator[tuple[str, re.Pattern[Any], frozenset[str]]]:
    """Yield every pattern of a package's modules with its name and how it is used, if that is known."""
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        spec = importlib.util.find_spec(found.name)
        source = Path(str(spec and spec.origin)).read_text("utf-8")
        if not re.search(r"\bre\.|\bcompile_late\(", source):  # without an import, which may be slow
            continue
        try:
            module = importlib.import_module(found.name)
        except ImportError:  # a package that is not installed
            continue
        for name, value in vars(module).items():
            if not re.search(rf"^{re.escape(name)}\b[^=\n]*=|^\w+, {re.escape(name)} = ", source, re.M):
                continue  # imported
            used = frozenset(re.findall(rf"\b{re.escape(name)}\.(\w+)", source)) - {"pattern"}
            for at, pattern in enumerate(_patterns_in(value)):
                yield f"{found.name}.{name}[{at}]", pattern, used
        yield from _patterns_of_calls(module, source)


def _patterns_of_calls(module: ModuleType, source: str) -> Iterator[tuple[str, re.Pattern[Any], frozenset[str]]]:
    """Yield the patterns in functions that are arguments of functions of `re`, such as `re.sub("a+", "", text)`."""
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    for node in (inner for function in functions for part in function.body for inner in ast.walk(part)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        if getattr(node.func.value, "id", "") != "re" or node.func.attr == "escape":
            continue
        form = _evaluate(node.args[0], module)
        values = (_evaluate(part, module) for part in [*node.args[1:], *(word.value for word in node.keywords)])
        flags = sum(value for value in values if isinstance(value, re.RegexFlag))
        if isinstance(form, str | bytes):
            name = f"{module.__name__}:{node.lineno}"
            yield name, re.compile(form, flags), frozenset([node.func.attr])


def _evaluate(node: ast.expr, module: ModuleType) -> Any:
    """Return the value of an expression, with `x` for each part of an f-string that only a call knows, or None."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    texts = []
    for part in parts:
        whole = part.value if isinstance(part, ast.FormattedValue) else part
        try:
            texts.append(eval(compile(ast.Expression(whole), "", "eval"), vars(module)))
        except Exception:
            texts.append("x" if isinstance(node, ast.JoinedStr) else None)
    return "".join(map(str, texts)) if isinstance(node, ast.JoinedStr) else texts[0]


def _patterns_in(value: Any, depth: int = 4) -> Iterator[re.Pattern[Any]]:
    """Yield the patterns in a value and its collections."""
    if isinstance(value, re.Pattern | _LatePattern):
        yield cast("re.Pattern[Any]", value)
    elif depth and isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _patterns_in(part, depth - 1)


def repeat(before: str, run: str, end: str, length: int) -> str:
    """Return a text of about this length."""
    return f"{before}{run * (length // len(run) + 1)}{end}"


def attacks(pattern: re.Pattern[Any]) -> Iterator[tuple[str, Callable[[int], str]]]:
    """Yield texts of any length, with a label: runs, and the loops of the pattern after what leads to them."""
    form = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree, rng = parser.parse(form, pattern.flags), random.Random(0)
    leaves = dict.fromkeys(_leaves(tree)) | dict.fromkeys((r"\w", r"\s", "\n"))
    kinds = [re.compile(leaf, pattern.flags & (re.I | re.A)) for leaf in leaves]
    # runs whose characters are the same to every part of the pattern are one attack
    runs = {tuple(tuple(bool(kind.match(char)) for kind in kinds) for char in run): run for run in reversed(RUNS)}
    pairs = [("go", run) for run in reversed(runs.values())]
    loops = list(dict.fromkeys(_loops(tree, rng)))
    rng.shuffle(loops)
    pairs += loops[:_LOOPS]
    pairs += [("", before + loop) for before, loop in loops[:_LOOPS]]
    pairs += [("", before or loop) for before, loop in loops[:_LOOPS]]
    for before, run in dict.fromkeys(pairs):
        for end in _ENDS:
            yield repr(f"{before}+{run}*{end}"), partial(repeat, before, run, end)


def _leaves(tree: Any) -> Iterator[str]:
    """Yield the parts of a parsed pattern that match one character, as patterns."""
    for kind, value in tree:
        if kind in (op.LITERAL, op.NOT_LITERAL):
            yield re.escape(chr(value))
        elif kind is op.IN:
            yield f"[{''.join(map(_write_member, *zip(*value, strict=True)))}]"
        else:
            for part in _parts(kind, value):
                yield from _leaves(part)


def _write_member(kind: Any, value: Any) -> str:
    """Return a member of a class as it stands in a pattern."""
    if kind is op.RANGE:
        return "-".join(re.escape(chr(end)) for end in value)
    return "^" if kind is op.NEGATE else _SHORT_FORMS[value] if kind is op.CATEGORY else re.escape(chr(value))


def _parts(kind: Any, value: Any) -> list[Any]:
    """Return the parsed patterns in a part of one."""
    if kind in _REPEATS:
        return [value[2]]
    if kind is op.BRANCH:
        return list(value[1])
    if kind in (op.SUBPATTERN, op.ASSERT, op.ASSERT_NOT):
        return [value[-1]]
    if kind is op.GROUPREF_EXISTS:
        return [part for part in value[1:] if part]
    return [value] if kind is op.ATOMIC_GROUP else []


def _write(tree: Any, rng: random.Random) -> str:
    """Return a text that a parsed pattern may match."""
    return "".join(_write_node(kind, value, rng) for kind, value in tree)


def _write_node(kind: Any, value: Any, rng: random.Random) -> str:
    if kind in (op.LITERAL, op.NOT_LITERAL):
        return chr(value if kind is op.LITERAL else value ^ 1)
    if kind is op.ANY:
        return "a"
    if kind is op.IN:
        return _write_class(value, rng)
    if kind is op.BRANCH:
        return _write(rng.choice(value[1]), rng)
    if kind in _REPEATS:
        return "".join(_write(value[2], rng) for _ in range(min(value[0], 20)))
    if kind is op.SUBPATTERN:
        return _write(value[3], rng)
    return _write(value, rng) if kind is op.ATOMIC_GROUP else ""


def _write_class(members: Any, rng: random.Random) -> str:
    """Return a character of a class."""
    listed = [
        chr(value) if kind is op.LITERAL else chr(rng.choice(value)) if kind is op.RANGE else _CATEGORIES[value]
        for kind, value in members
        if kind is not op.NEGATE
    ]
    if members[0][0] is op.NEGATE:
        return next(char for char in "aA1 .-=:é\\" if char not in listed)
    return rng.choice(listed)


def _loops(tree: Any, rng: random.Random, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield what leads to each long loop of a parsed pattern, and what it repeats."""
    for kind, value in tree:
        if kind in _REPEATS and value[1] > 8:
            yield from ((before[-200:], loop) for loop in (_write(value[2], rng) for _ in range(3)) if loop)
        for part in _parts(kind, value):
            yield from _loops(part, rng, before)
        before += _write_node(kind, value, rng)


def find_growth(
    call: Callable[[str], object], make: Callable[[int], str], least: int = 2**14, most: int = 2**20
) -> float:
    """Return how much more time a text takes than a quarter of it, or 0 if it takes almost none.

    The text is so long that its time can be measured, and that a quarter of it reaches the upper bounds of loops: until
    then, the time grows as it would without. The time is that of the thread, so other work on the machine does not
    count. Where few characters take long, more would never end.
    """
    call(make(1))  # compiles a pattern
    for size in (*range(8, 64, 4), 64, 128, 256, 512):
        if all(_measure(call, make(size)) > _EXPLOSIVE_S for _ in range(2)):
            return 99.0
    size = least
    while (long := _measure(call, make(size))) < _MEASURABLE_S and size < most:
        size *= 4
    if long < TIMES * _measure(call, make(size // 4)) or not (growth := _compare(call, make, size)):
        return 0.0
    # A longer text must show it, too: where memory no longer fits into a cache, that costs time once.
    return growth if long > 50 * _MEASURABLE_S else min(growth, _compare(call, make, 4 * size))


def _compare(call: Callable[[str], object], make: Callable[[int], str], size: int) -> float:
    """Return the smallest of several measurements of the growth, or 0 if one is that of linear time."""
    growth = 99.0
    for runs in (1, 2, 4):
        long = min(_measure(call, make(size)) for _ in range(runs))
        growth = min(growth, long / max(min(_measure(call, make(size // 4)) for _ in range(runs + 1)), 1e-6))
        if growth < TIMES or long < _MEASURABLE_S / 2:
            return 0.0
        if runs > 1 and long > 50 * _MEASURABLE_S:
            break
    return growth


TIMES = 6
"""Smallest growth of the time that is no longer linear, for a text of four times the size."""
_MEASURABLE_S, _EXPLOSIVE_S = 0.002, 0.02


def _measure(call: Callable[[str], object], text: str) -> float:
    gc.disable()  # it would count the objects of all other tests
    began = time.thread_time()
    call(text)
    spent = time.thread_time() - began
    gc.enable()
    return spent


def exhaust(pattern: re.Pattern[Any], used: frozenset[str]) -> Callable[[str], object]:
    """Return a function that matches a text with a pattern in every way in which the pattern is used."""
    is_anchored = bool(used) and used <= {"match", "fullmatch"}
    calls = (
        [getattr(pattern, name) for name in used] if is_anchored else [lambda text: deque(pattern.finditer(text), 0)]
    )
    if isinstance(pattern.pattern, bytes):
        return lambda text: [call(text.encode("utf-8", "surrogatepass")) for call in calls]
    return lambda text: [call(text) for call in calls]
