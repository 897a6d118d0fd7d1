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
    pairs = [("go", run) for run in RUNS]
    rng = random.Random(0)
    form = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    loops = list(dict.fromkeys(_loops(parser.parse(form, pattern.flags), rng)))
    rng.shuffle(loops)
    pairs += loops[:_LOOPS]
    pairs += [("", before + loop) for before, loop in loops[:_LOOPS]]
    pairs += [("", before or loop) for before, loop in loops[:_LOOPS]]
    for before, run in pairs:
        for end in _ENDS:
            yield repr(f"{before}+{run}*{end}"), partial(repeat, before, run, end)


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
        parts: list[Any] = []
        if kind in _REPEATS:
            parts = [value[2]]
            if value[1] > 8:
                yield from ((before[-200:], loop) for loop in (_write(value[2], rng) for _ in range(3)) if loop)
        elif kind is op.BRANCH:
            parts = list(value[1])
        elif kind is op.SUBPATTERN:
            parts = [value[3]]
        elif kind is op.ATOMIC_GROUP:
            parts = [value]
        elif kind in (op.ASSERT, op.ASSERT_NOT):
            parts = [value[1]]
        for part in parts:
            yield from _loops(part, rng, before)
        before += _write_node(kind, value, rng)


def find_growth(call: Callable[[str], object], make: Callable[[int], str], size: int) -> float:
    """Return how much more time a text of four times the size takes, or 0 if even that takes almost none.

    The time is that of the thread, the shortest of several runs, so other work on the machine does not count. A loop
    with an upper bound grows like one without until it reaches the bound, so a longer text must show the same.
    """
    if min(_measure(call, make(20)) for _ in range(2)) > _MEASURABLE_S:
        return 99.0  # exponential: a longer text would never end
    if _measure(call, make(4 * size)) < _MEASURABLE_S:
        return 0.0
    growth = _compare(call, make, size)
    return growth if growth < TIMES or size > _BOUND else min(growth, _compare(call, make, 6 * size))


def _compare(call: Callable[[str], object], make: Callable[[int], str], size: int) -> float:
    """Return the smallest of several measurements of the growth, fewer of them if they take long."""
    growth = 99.0
    for runs in (1, 2, 4):
        long = min(_measure(call, make(4 * size)) for _ in range(runs))
        growth = min(growth, long / max(min(_measure(call, make(size)) for _ in range(runs + 1)), 1e-6))
        if growth < TIMES or (runs > 1 and long > 50 * _MEASURABLE_S):
            break
    return growth


TIMES = 8
"""Largest growth of the time for a text of four times the size: less than 3 for twice the size."""
_MEASURABLE_S = 0.002
_BOUND = 1000
"""Characters within which loops with an upper bound reach it."""


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
