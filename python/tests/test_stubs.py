"""The stub says what the module has: every name, and every argument's name."""

import ast
import inspect
import re
from pathlib import Path

import kvlink
from kvlink import _kvlink

STUB = ast.parse((Path(kvlink.__file__).parent / "_kvlink.pyi").read_text())
PYTHON_ONLY = {"Verdict"}  # the type of a dictionary
CLASSES = {node.name: node for node in STUB.body
           if isinstance(node, ast.ClassDef) and node.name not in PYTHON_ONLY}


def members_of_stub(node):
    names = set()
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            names.add(item.name)
        elif isinstance(item, ast.AnnAssign):
            names.add(item.target.id)
        elif isinstance(item, ast.Assign):
            names.update(target.id for target in item.targets)
    return names


def members_of_module(cls):
    kept = {"__init__", "__enter__", "__exit__"}
    if hasattr(cls, "__members__"):
        return set(cls.__members__)
    return {name for name in vars(cls) if name in kept or not name.startswith("_")}


def test_every_class_and_function_is_in_the_stub_and_no_other():
    public = {name for name, value in vars(_kvlink).items()
              if inspect.isclass(value) or (inspect.isroutine(value) and not name.startswith("_"))}
    functions = {node.name for node in STUB.body if isinstance(node, ast.FunctionDef)}
    assert public == set(CLASSES) | functions


def test_every_member_is_in_the_stub_and_no_other():
    for name, node in CLASSES.items():
        stub, module = members_of_stub(node), members_of_module(getattr(_kvlink, name))
        if "__init__" not in stub:
            module.discard("__init__")  # not to be made from Python
        assert stub == module, name


def test_arguments_have_the_names_that_the_module_takes():
    checked = 0
    for name, node in CLASSES.items():
        for item in node.body:
            if not isinstance(item, ast.FunctionDef) or item.decorator_list:
                continue
            if item.args.kwarg or item.args.vararg:
                continue
            method = getattr(getattr(_kvlink, name), item.name)
            signature = re.match(rf"{item.name}\((.*)\) ->", (method.__doc__ or "").split("\n")[0])
            if signature is None or "**kwargs" in signature[1]:
                continue
            wanted = [a.arg for a in (*item.args.args[1:], *item.args.kwonlyargs)]
            seen = re.findall(r"(?:^|, )(\w+):", re.sub(r"\[[^\]]*\]", "", signature[1]))[1:]
            assert wanted == seen, f"{name}.{item.name}"
            checked += 1
    assert checked > 25


def test_what_the_package_says_it_exports_is_there():
    assert all(hasattr(kvlink, name) for name in kvlink.__all__)
    assert kvlink.__version__.count(".") == 2
