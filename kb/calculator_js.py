"""A calculator's Python as JavaScript: only what means the same in both languages passes, then PScript translates it.

PScript turns some Python into JavaScript that runs and computes something else (`-7 % 3`, `round(2.5)`, keyword
arguments, division by zero, integers beyond 2**53, `str(1.0)`). So the source may use a small part of Python only; what
cannot be seen in the source (zero divisors, large integers) is left to the test that compares both on many inputs.
"""

import ast
from pathlib import Path

from kb.paths import ROOT, SNIPPETS
from kb.search_script import lean

PACKAGE = "snippets.tools"
MATH = ("floor", "ceil", "sqrt")
BUILTINS = {"min", "max", "range", "str", "ValueError"}
RESERVED = {"var", "let", "const", "function", "new", "this", "typeof", "void", "switch", "case", "default", "throw", "catch", "undefined"}
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.USub, ast.Not, ast.And, ast.Or, ast.Load, ast.Store)
COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
LARGEST = 2**53


class NotTranslatable(ValueError):
    """A construct that JavaScript would treat differently; says where and what to write instead."""

    def __init__(self, path: str, node: ast.AST, problem: str):
        super().__init__(f"{path}:{getattr(node, 'lineno', 0)}: {problem}")


class _Check:
    """Walks one module; every node must be of a known kind."""

    def __init__(self, path: str, known: set[str]):
        self.path = path
        self.known = known  # functions that calls may name
        self.booleans: set[str] = set()

    def fail(self, node: ast.AST, problem: str):
        raise NotTranslatable(self.path, node, problem)

    def function(self, node: ast.FunctionDef) -> None:
        arguments = node.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs or node.decorator_list:
            self.fail(node, "plain positional parameters without decorators only")
        if any(not isinstance(default, ast.Constant) for default in arguments.defaults):
            self.fail(node, "defaults are constants")
        self.booleans = {a.arg for a in arguments.args if isinstance(a.annotation, ast.Name) and a.annotation.id == "bool"}
        for argument in arguments.args:
            self.name(argument, argument.arg)
        for statement in node.body[1:] if ast.get_docstring(node) else node.body:
            self.statement(statement)

    def name(self, node: ast.AST, name: str) -> None:
        if name in RESERVED:
            self.fail(node, f"{name!r} is a word of JavaScript")

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.name(node, name)
                if isinstance(value, ast.Compare | ast.BoolOp) or (isinstance(value, ast.Constant) and isinstance(value.value, bool)):
                    self.booleans.add(name)
                self.expression(value)
            case ast.Assign(targets=[ast.Subscript() as target], value=value):
                self.expression(target)
                self.expression(value)
            case ast.Return(value=ast.expr() as value):
                self.expression(value)
            case ast.If(test=test, body=body, orelse=other):
                self.condition(test)
                for statement in (*body, *other):
                    self.statement(statement)
            case ast.For(target=ast.Name(id=name), iter=ast.Name() | ast.Call(func=ast.Name(id="range")), body=body, orelse=[]):
                self.name(node, name)
                self.expression(node.iter)
                for statement in body:
                    self.statement(statement)
            case ast.Raise(exc=ast.Call(func=ast.Name(id="ValueError"), args=[message]), cause=None):
                self.expression(message)
            case ast.Expr(value=ast.Call() as call):
                self.expression(call)
            case _:
                self.fail(node, f"{type(node).__name__} is outside the part of Python that both languages share")

    def condition(self, node: ast.expr) -> None:
        """What decides a branch is a comparison or made of some: truth of numbers and containers differs."""
        match node:
            case ast.Compare():
                self.expression(node)
            case ast.BoolOp(values=values):
                for value in values:
                    self.condition(value)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.condition(operand)
            case ast.Name(id=name) if name in self.booleans:
                pass
            case _:
                self.fail(node, "compare explicitly; whether a number or a container is true differs")

    def expression(self, node: ast.expr) -> None:
        match node:
            case ast.Constant(value=bool() | str() | float()) | ast.Name():
                return
            case ast.Constant(value=int() as value):
                if abs(value) >= LARGEST:
                    self.fail(node, "an integer beyond 2**53 is not exact in JavaScript")
                return
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right=right):
                self.expression(left)
                self.expression(right)
            case ast.BinOp(op=operator):
                self.fail(node, f"operator {type(operator).__name__} differs; use +, -, *, / and math.floor")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                self.expression(operand)
            case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                self.condition(node)
            case ast.Compare(left=left, ops=operators, comparators=others):
                if not all(isinstance(operator, COMPARISONS) for operator in operators):
                    self.fail(node, "of comparisons, only < <= > >= == != mean the same")
                for part in (left, *others):
                    self.expression(part)
            case ast.IfExp(test=test, body=body, orelse=other):
                self.condition(test)
                self.expression(body)
                self.expression(other)
            case ast.Subscript(value=ast.Name(), slice=ast.Name() | ast.Constant(value=str()) | ast.BinOp() as key):
                self.expression(key)
            case ast.Subscript():
                self.fail(node, "index a name by a name or a string; negative indices and slices differ")
            case ast.Dict(keys=keys, values=values):
                if not all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in keys):
                    self.fail(node, "keys of a dict are strings")
                for value in values:
                    self.expression(value)
            case ast.List(elts=items):
                for item in items:
                    self.expression(item)
            case ast.Call(func=function, args=arguments, keywords=keywords):
                if keywords or any(isinstance(argument, ast.Starred) for argument in arguments):
                    self.fail(node, "pass arguments by position; PScript mistreats keywords")
                match function:
                    case ast.Name(id=name) if name in self.known | BUILTINS:
                        if name in ("min", "max") and len(arguments) < 2:
                            self.fail(node, f"{name} of numbers, not of a container")
                        if name == "str" and not isinstance(arguments[0], ast.Name):
                            self.fail(node, "str of a name that holds an int")
                    case ast.Attribute(value=ast.Name(id="math"), attr=name) if name in MATH:
                        pass
                    case _:
                        self.fail(node, f"a call of {ast.unparse(function)} is not known to mean the same")
                for argument in arguments:
                    self.expression(argument)
            case _:
                self.fail(node, f"{type(node).__name__} is outside the part of Python that both languages share")


class _Bare(ast.NodeTransformer):
    """Takes away what only people and type checkers read, and switches PScript's operator overloading off."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        for argument in node.args.args:
            argument.annotation = None
        body = node.body[1:] if ast.get_docstring(node) else node.body
        node.body = [*ast.parse("PSCRIPT_OVERLOAD = False").body, *body]
        return node


def _checked(path: Path, done: dict[str, list[ast.stmt]]) -> set[str]:
    """Check one module and those it imports; their statements go into `done`, imports first. Returns its functions."""
    relative = path.relative_to(SNIPPETS).as_posix() if path.is_relative_to(SNIPPETS) else path.name
    tree = ast.parse(path.read_text(encoding="utf-8"))
    known: set[str] = set()
    kept: list[ast.stmt] = []
    for node in tree.body:
        match node:
            case ast.ImportFrom(module="typing") | ast.Expr(value=ast.Constant(value=str())):
                pass
            case ast.Import(names=[ast.alias(name="math", asname=None)]):
                pass
            case ast.ImportFrom(module=str() as module, names=names) if module.startswith(f"{PACKAGE}.") and not any(
                a.asname for a in names
            ):
                source = ROOT.joinpath(*module.split(".")).with_suffix(".py")
                if module not in done:
                    _checked(source, done)
                known |= {alias.name for alias in names}
            case ast.FunctionDef(name=name):
                known.add(name)
                _Check(relative, known).function(node)
                kept.append(node)
            case ast.Assign(targets=[ast.Name()], value=ast.Dict() | ast.Constant() as value):
                _Check(relative, set()).expression(value)
                kept.append(node)
            case _:
                raise NotTranslatable(relative, node, f"{ast.unparse(node)[:60]!r} is no function, constant or allowed import")
    done[f"{PACKAGE}.{path.stem}"] = kept
    return known


def check(path: Path) -> None:
    """Raise NotTranslatable for the first construct of a module (or of what it imports) that is outside the shared part."""
    _checked(path, {})


def compile_module(path: Path, function: str) -> str:
    """The module's functions as an ES module whose default export is `function`."""
    from pscript import py2js

    modules: dict[str, list[ast.stmt]] = {}
    _checked(path, modules)
    tree = ast.Module([statement for statements in modules.values() for statement in statements], [])
    script = py2js(ast.unparse(ast.fix_missing_locations(_Bare().visit(tree))))
    used = ",".join(f"{name}:Math.{name}" for name in MATH)
    return lean(f"const math={{{used}}};\n{script}\nexport default {function};\n")
