"""Private names of TensorFlow, tf-keras and Hydra occur only in the modules that own them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from sources import PSRUN, modules, nodes

OWNERS = ("tf_internals", "keras3/internals.py", "cli/hydra_context.py")
MODULES = ("tensorflow.python", "tensorflow.core", "tf_keras.src", "keras.src", "hydra._internal")
# Of Python's namedtuples, `os`, `atexit` and `argparse`, which have no others; and keys of a configuration.
PUBLIC = {"_replace", "_exit", "_run_exitfuncs", "_SubParsersAction", "_target_"}
# Which psrun's own classes could take for names of theirs, as they assign them or inherit them.
FOREIGN = {
    "_built", "_deduplicate_sparse_grad", "_dense_var_to_tensor", "_flatten_layers", "_inbound_nodes", "_index_dict",
    "_internal_apply_gradients", "_is_graph_network", "_no_dependency", "_steps_per_execution", "_supports_tf_logs",
    "_trackable_children", "_var_key",
}  # fmt: skip


def private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def own(node: ast.expr) -> bool:
    """Whether it is an object of the class around it: `self`, `cls` or `super()`."""
    if isinstance(node, ast.Call):
        node = node.func
    return isinstance(node, ast.Name) and node.id in ("self", "cls", "super")


def defined(tree: list[ast.AST]) -> Iterator[str]:
    """Private names that a module defines: functions, classes, variables, and attributes of its objects."""
    for node in tree:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and own(node.value):
            yield node.attr


def used(tree: list[ast.AST]) -> Iterator[tuple[int, str, bool]]:
    """The private attributes that a module reads: line, name, and whether the object is the module's own."""
    for node in tree:
        if isinstance(node, ast.Attribute) and private(node.attr):
            yield node.lineno, node.attr, own(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and private(name.value):
                yield node.lineno, str(name.value), own(node.args[0])


def imported(tree: list[ast.AST]) -> Iterator[str]:
    for node in tree:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def foreign(path: Path, tree: list[ast.AST], everywhere: set[str]) -> list[str]:
    """What is private to others in a module, with lines where known."""
    here = set(defined(tree))
    asked = [
        f"{path}:{line} {name}"
        for line, name, its_own in used(tree)
        if name in FOREIGN or name not in (everywhere if its_own else here)
    ]
    modules = [f"{path} {name}" for name in imported(tree) if name.startswith(MODULES)]
    return [*modules, *asked, *(f"{path} defines {name}" for name in sorted(here & FOREIGN))]


def test_private_names_of_others_are_only_in_the_modules_that_own_them():
    files = [path for path in modules() if not str(path.relative_to(PSRUN)).startswith(OWNERS)]
    assert len(files) > 200
    trees = {path: nodes(path) for path in files}
    everywhere = {name for tree in trees.values() for name in defined(tree)}
    assert [each for path, tree in trees.items() for each in foreign(path, tree, everywhere)] == []


def test_the_rule_finds_what_it_is_for():
    source = "from tensorflow.python.eager import record\nx._v\nself._built\ngetattr(layer, '_inbound_nodes', None)"
    tree = [*ast.walk(ast.parse(source))]
    assert list(imported(tree)) == ["tensorflow.python.eager.record"]
    assert list(used(tree)) == [(2, "_v", False), (3, "_built", True), (4, "_inbound_nodes", False)]
