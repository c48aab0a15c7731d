"""Methods of a Trainer's subclass that do what the library's do: they call it, or the model alone, and log the loss."""

from __future__ import annotations

import ast

METHODS = ("compute_loss", "training_step", "prediction_step")
PLAIN_TRAINERS = ("Trainer", "Seq2SeqTrainer")
"""Trainers whose own compute_loss takes the model's loss (transformers 5.23, trainer.py: Trainer.compute_loss)."""
TO_NUMBERS = ("float", "int", "round", "len", "str", "bool", "isinstance", "hasattr")
"""Functions whose results are no tensors on the GPU."""
LOGS = ("log", "info", "debug", "warning", "print", "append")
"""Functions and methods that take such numbers."""
PARTS = (
    ast.Constant, ast.JoinedStr, ast.FormattedValue, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp,
    ast.Dict, ast.List, ast.Tuple, ast.Subscript, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip
"""Syntax of expressions whose values are numbers and texts if those of their parts are."""


def is_usual(node: ast.AST, trainer: str) -> bool:
    """Whether a method runs the library's own step, and nothing else on the GPU.

    Args:
        node: the method's syntax.
        trainer: the class of the library that its class is made from.
    """
    if not isinstance(node, ast.FunctionDef) or node.name not in METHODS or node.decorator_list:
        return False
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    if len(names) < 3:
        return False
    return _Steps(node.name, names, trainer in PLAIN_TRAINERS).follow(node.body)


class _Steps:
    """Goes through the statements of a method."""

    def __init__(self, method: str, names: list[str], is_plain: bool) -> None:
        self.method, self.owner, self.model, self.inputs = method, *names[:3]
        self.is_plain = is_plain
        self.results: set[str] = set()
        """Names of what the step returned: the loss, the outputs."""
        self.has_step = False

    def follow(self, body: list[ast.stmt]) -> bool:
        """Whether the statements are a step, then logging, then a return of what it returned."""
        *inner, last = body
        return all(self._is_plain(statement) for statement in inner) and self._is_return(last) and self.has_step

    def _is_return(self, node: ast.stmt) -> bool:
        if not isinstance(node, ast.Return) or node.value is None:
            return False
        if self._is_super(node.value):
            self.has_step = not self.has_step
            return self.has_step
        parts = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
        names = [name for part in parts for name in (part.elts if isinstance(part, ast.Tuple) else [part])]
        return all(isinstance(name, ast.Name) and name.id in self.results for name in names)

    def _is_plain(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.Expr):
            return isinstance(node.value, ast.Constant) or self._is_log(node.value)
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            return self._is_assignment(node.targets[0], node.value)
        if isinstance(node, ast.If):
            return self._is_number(node.test) and all(self._is_aside(one) for one in (*node.body, *node.orelse))
        return False

    def _is_aside(self, node: ast.stmt) -> bool:
        """Whether a statement under a condition only logs."""
        if isinstance(node, ast.Expr):
            return self._is_log(node.value)
        if isinstance(node, ast.If):
            return self._is_plain(node)
        return isinstance(node, ast.Assign) and len(node.targets) == 1 and self._is_kept(node.targets[0], node.value)

    def _is_assignment(self, target: ast.expr, value: ast.expr) -> bool:
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        is_step = self._is_super(value) or (self.is_plain and self.method == "compute_loss" and self._is_model(value))
        if is_step and not self.has_step and all(isinstance(name, ast.Name) for name in names):
            self.has_step = True
            self.results |= {name.id for name in names if isinstance(name, ast.Name)}
            return True
        if isinstance(target, ast.Name) and self._is_loss(value):
            self.results.add(target.id)
            return True
        return self._is_kept(target, value)

    def _is_kept(self, target: ast.expr, value: ast.expr) -> bool:
        """Whether a number of Python's own is kept; what the library reads of the trainer is not replaced by a name."""
        if not isinstance(target, (ast.Name, ast.Attribute)) or not self._is_number(value):
            return False
        is_new = not isinstance(target, ast.Name) or target.id not in {
            *self.results,
            self.model,
            self.inputs,
            self.owner,
        }
        return is_new and any(isinstance(part, (ast.Call, ast.Constant)) for part in ast.walk(value))

    def _is_super(self, node: ast.expr) -> bool:
        """``super().compute_loss(...)`` with what the method got."""
        function = node.func if isinstance(node, ast.Call) else None
        if not isinstance(function, ast.Attribute) or function.attr != self.method or not isinstance(node, ast.Call):
            return False
        owner = function.value
        is_super = isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        plain = [value.value if isinstance(value, ast.Starred) else value for value in values]
        return is_super and all(isinstance(value, (ast.Name, ast.Constant)) for value in plain)

    def _is_model(self, node: ast.expr) -> bool:
        """``model(**inputs)``."""
        if not isinstance(node, ast.Call) or node.args or len(node.keywords) != 1:
            return False
        (keyword,) = node.keywords
        names = [one.id if isinstance(one, ast.Name) else "" for one in (node.func, keyword.value)]
        return keyword.arg is None and names == [self.model, self.inputs]

    def _is_loss(self, node: ast.expr) -> bool:
        """``outputs.loss``, ``outputs["loss"]`` or ``outputs[0]``."""
        if isinstance(node, ast.Attribute):
            key: object = node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            key = node.slice.value
        else:
            return False
        owner = node.value
        return isinstance(owner, ast.Name) and owner.id in self.results and key in ("loss", 0)

    def _is_log(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call):
            return False
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        return _name_of(node.func) in LOGS and all(self._is_number(value) for value in values)

    def _is_number(self, node: ast.AST) -> bool:
        """Whether an expression is made of Python's own values: of a tensor it takes ``.item()``, ``float(...)``."""
        if isinstance(node, ast.Name):
            return node.id not in {*self.results, self.model, self.inputs, self.owner}
        if isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id == self.owner
            return is_own or self._is_number(node.value)
        if isinstance(node, ast.Call):
            return self._is_number_of(node.func, [*node.args, *(keyword.value for keyword in node.keywords)])
        return isinstance(node, PARTS) and all(self._is_number(child) for child in ast.iter_child_nodes(node))

    def _is_number_of(self, function: ast.expr, values: list[ast.expr]) -> bool:
        """Whether a call returns a number or a text, and makes no tensor."""
        if isinstance(function, ast.Name):
            return function.id in TO_NUMBERS and all(self._is_chain(one) or self._is_number(one) for one in values)
        if isinstance(function, ast.Attribute) and function.attr == "item":
            return not values and self._is_chain(function.value)
        is_get = isinstance(function, ast.Attribute) and function.attr == "get"
        return is_get and self._is_number(function) and all(self._is_number(one) for one in values)

    def _is_chain(self, node: ast.expr) -> bool:
        """Whether it is a result of the step, or an input, or a part of one: ``outputs.loss.detach()``."""
        if isinstance(node, ast.Name):
            return node.id in {*self.results, self.inputs}
        if isinstance(node, ast.Call):
            is_view = isinstance(node.func, ast.Attribute) and node.func.attr in ("detach", "mean")
            return is_view and not node.args and self._is_chain(node.func)
        if isinstance(node, ast.Subscript):
            return isinstance(node.slice, ast.Constant) and self._is_chain(node.value)
        return isinstance(node, ast.Attribute) and self._is_chain(node.value)


def _name_of(function: ast.expr) -> str:
    """The last part of a function's name."""
    name = getattr(function, "attr", None) or getattr(function, "id", "")
    return str(name)


__all__ = ["is_usual"]
