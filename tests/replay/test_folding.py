"""What is known before a script runs is left out of it, and nothing else."""

import ast
import inspect

import pytest

from gradconform.contract import checks_of
from gradconform.reference import autograd
from gradconform.replay import comparison, standalone
from gradconform.replay.folding import Folding, unparsed
from gradconform.replay.known_values import known as known_of
from gradconform.replay.script import Replayed
from gradconform.target import functions, session
from gradconform.target.resolve import resolve

CHECKS = checks_of()


def folded(text: str, **known: object) -> str:
    folding = Folding(known, {"TABLE": {"a"}}, frozenset({"read"}))
    return "\n".join(unparsed(node) for node in folding.block(ast.parse(text).body))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("if YES:\n    a()\nelse:\n    b()", "a()"),
        ("if NO:\n    a()\nelif x:\n    b()", "if x:\n    b()"),
        ("if x:\n    if YES:\n        raise a\n    b()", "if x:\n    raise a"),
        ("for one in many:\n    if NO:\n        a()", "for one in many:\n    pass"),
        ("f(a if NO else b)", "f(b)"),
        ("if x and YES:\n    a()", "if x:\n    a()"),
        ("if NO or (YES and x):\n    a()", "if x:\n    a()"),
        ("a = x or 0", "a = x or 0"),
        ("a = x and NO", "a = False"),
        ("f(YES, 'b' in SET, 'c' not in SET)", "f(True, True, True)"),
        ("TABLE: dict[str, int] = {'a': 1, 'b': 2}", "TABLE = {\n    'a': 1,\n}"),
        ("TABLE = {'a', 'b'}", "TABLE = {'a'}"),
        (
            "class A:\n    'Told.'\n    def read(self): 'Told.'\n    def other(self): f()",
            "class A:\n    def read(self):\n        pass",
        ),
        ("class A(NamedTuple):\n    a: Tensor\n    b: int = 1", "class A(NamedTuple):\n    a: Tensor\n    b: int = 1"),
        ("def f(a: int, *b: str) -> int:\n    self.read, c = {}, 1", "def f(a, *b):\n    self.read, c = ({}, 1)"),
        ("with f() if NO else nullcontext():\n    a()", "a()"),
        ("with f() if YES else nullcontext():\n    a()", "with f():\n    a()"),
        (
            "class A(B):\n    def __init__(self, a): super().__init__(a)\n    def read(self): return super().read()",
            "class A(B):\n    pass",
        ),
        (
            "class A(B):\n    def read(self, a=1): return super().read(a)",
            "class A(B):\n    def read(self, a=1):\n        return super().read(a)",
        ),
        ("self.unread: dict[str, int] = {}\nself.read = {}\nself.unread = f()", "self.read = {}\nself.unread = f()"),
    ],
)
def test_known_conditions_are_removed_from_a_script(text: str, expected: str) -> None:
    found = folded(text, YES=True, NO=False, SET={"b"})
    assert found.replace("(self.read, c) = ", "self.read, c = ") == expected  # as Python 3.10 writes it


def test_a_long_line_is_broken_after_commas_without_changing_its_meaning() -> None:
    text = f"value = f({', '.join(f'name_{place}(a, b)' for place in range(30))}, 'one, two')"
    (node,) = ast.parse(text).body
    lines = unparsed(node).splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 112
    assert ast.unparse(ast.parse("\n".join(lines))) == text


def test_every_known_expression_occurs_in_the_source_of_a_script() -> None:
    modules = (standalone, comparison, autograd, functions, session, standalone.leaves)
    trees = [ast.parse(inspect.getsource(module)) for module in modules]
    written = {ast.unparse(node) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.expr)}
    for check in ("full.gradients.mlp", "split.gradients.custom-linear"):
        known = known_of(CHECKS[check], resolve("reference-split").capabilities)
        assert known.keys() <= written


def test_a_script_contains_only_code_that_its_trial_uses() -> None:
    text = Replayed(CHECKS["full.gradients.mlp"], resolve("reference-split"), "float32", "cpu", 20).text()
    absent = (
        "backward_input",
        "backward_weight",
        "register_hook",
        "mean_squares",
        "is_contiguous",
        "misuse(",
        "zero_grad",
    )
    assert [name for name in absent if f"def {name}" in text or f".{name}(" in text] == []
    assert len(text.splitlines()) < 380
