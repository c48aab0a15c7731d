"""Calls of the script's own functions and classes, which are followed with their arguments."""

from __future__ import annotations

import ast
from typing import Any

from vramplan.frameworks.syntax.python.expressions import Expressions
from vramplan.frameworks.syntax.python.machine import MOST_DEPTH, Frame, Function, Raised
from vramplan.frameworks.syntax.python.memory import MISSING
from vramplan.frameworks.syntax.python.modules import MOST_SHARE
from vramplan.frameworks.syntax.python.values import Attributes, Bound, Library, Module, Ref, Unknown, joined, refs_of

HARMLESS_DECORATORS = frozenset(
    [
        "staticmethod",
        "classmethod",
        "property",
        "wraps",
        "no_grad",
        "inference_mode",
        "record",
        "dataclass",
        "enable_grad",
        "contextmanager",
        "cache",
        "lru_cache",
        "override",
        "abstractmethod",
        "jit",
        "cached_property",
    ]
)
"""Decorators that leave arguments and result alone, or are followed."""
READ_ONLY = frozenset(
    [
        "get",
        "keys",
        "values",
        "items",
        "copy",
        "index",
        "count",
        "__contains__",
        "__len__",
        "__getitem__",
        "isdisjoint",
        "union",
        "format",
    ]
)
"""Methods that leave a container as it is."""
MOST_RECURSION = 6
"""Calls of a function inside itself that are followed, where all that leads to them is known."""
DYNAMIC_CLASS = frozenset({"__init_subclass__", "__set_name__", "__class_getitem__"})
CLI_DECORATORS = frozenset(
    ["command", "option", "argument", "main", "hydra_main", "group", "callback", "pass_context", "script"]
)


class Functions(Expressions):
    """Follows functions and classes of the script."""

    def decorated(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Any:
        """The value that a function definition binds."""
        function: Any = self.function(node)
        owner = self.scope if self.at(self.scope).cls == "class" else None
        if owner is not None:
            function = Function(node, function.env, function.defaults, function.keyword_defaults, owner)
        if self.module == self.main:
            self.defined.append(function)
        for decorator in reversed(node.decorator_list):
            function = self._decorate(function, decorator)
        return function

    def _decorate(self, function: Any, decorator: ast.expr) -> Any:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = call.attr if isinstance(call, ast.Attribute) else call.id if isinstance(call, ast.Name) else ""
        target = self.lookup(call.id) if isinstance(call, ast.Name) else None
        if isinstance(target, Function) and isinstance(function, Function):
            made = self.value(decorator)
            return self.apply(made, [function], {}, decorator)
        values = [self.value(part) for part in decorator.args] if isinstance(decorator, ast.Call) else []
        if not isinstance(function, Function):
            return self.unknown(decorator, function, *values)
        if name in ("staticmethod", "classmethod", "property"):
            return self._with(function, kind=name)
        if name in HARMLESS_DECORATORS or name in ("compute", "torch_compile"):
            return function
        if name == "option" and isinstance(decorator, ast.Call):
            return self._option(function, values, decorator)
        if name == "command" and isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name):
            self.commands[call.value.id] = function
        if name in ("main", "hydra_main") and isinstance(decorator, ast.Call) and "hydra" in self.text(call):
            keywords = {keyword.arg: self.value(keyword.value) for keyword in decorator.keywords}
            places: dict[str | None, Any] = dict(zip(("config_path", "config_name"), values, strict=False))
            options = tuple((str(key), value) for key, value in (places | keywords).items())
            return self._with(function, wrapper="@hydra_main", options=options)
        if name in CLI_DECORATORS:
            return self._with(function, wrapper=function.wrapper or f"@{name}")
        return self._with(function, wrapper=f"@{name or 'decorator'}")

    def _with(self, function: Function, **changes: Any) -> Function:
        fields = {name: getattr(function, name) for name in Function.__slots__}
        return Function(**(fields | changes))

    def _option(self, function: Function, values: list[Any], decorator: ast.Call) -> Function:
        """click.option: its default, unless the command has the flag."""
        names = [value for value in values if isinstance(value, str)]
        long = next((name for name in names if not name.startswith("-")), None)
        long = long or next((name for name in names if name.startswith("--")), names[0] if names else "")
        key = long.lstrip("-").partition("/")[0].replace("-", "_")
        keywords = {keyword.arg: keyword.value for keyword in decorator.keywords if keyword.arg}
        default = self.value(keywords["default"]) if "default" in keywords else None
        if "default" not in keywords and "is_flag" in keywords:
            default = False
        if key in self.flags:
            kind = self.value(keywords["type"]) if "type" in keywords else None
            default = self.from_flag(key, kind, default, decorator)
        elif default is None and "default" not in keywords and "required" in keywords:
            default = Unknown(key)
        return self._with(function, options=(*function.options, (key, default)), wrapper="@command")

    def from_flag(self, key: str, kind: Any, default: Any, node: ast.AST) -> Any:
        """The value of a command's flag, converted."""
        raise NotImplementedError

    # -- calls ---------------------------------------------------------------------------------------------------------

    def follow(
        self, function: Function, positional: list[Any], keywords: dict[str, Any], node: ast.AST, spread: bool = False
    ) -> Any:
        """Follow a function of the script with its arguments."""
        if function.wrapper:
            if function.wrapper == "@hydra_main" and not positional and not keywords:
                config = self.hydra_config(function, node)
                parameters = function.node.args.args[:1]
                keywords = {parameter.arg: config for parameter in parameters if config is not None}
                spread = config is None
            elif function.wrapper in ("@command", "@main") and not positional and not keywords:
                keywords = dict(function.options)
                spread = True
            else:
                self.lose_all([*positional, *keywords.values()], self.text(node))
                positional, keywords, spread = [], {}, True
        if self.steps > MOST_SHARE and self.module_of(function.env) != self.main:
            return self.unfollowed(positional, keywords, node)
        inner = function.node
        running = [frame for frame in self.frames if frame.function is inner]
        active = running[0] if running else None
        if active is not None and not (self.certain and len(running) < MOST_RECURSION):
            # what it writes is lost, and followed again with that
            active.has_recursed = True
            self.lose_all([*positional, *keywords.values()], self.text(node))
            self._lose_keys(active.log)
            return self.unknown(node, *positional, *keywords.values())
        if len(self.frames) >= MOST_DEPTH:
            self._lose_everything(self.text(node))
            return self.unknown(node, *positional, *keywords.values())
        bound = self._arguments(function, positional, keywords, node, spread)
        names, outer = _bound_names(inner)
        scope = self.new(
            "scope", cls="function", slots=bound, parent=self._outer(function.env), names=names, outer=outer
        )
        if not isinstance(inner, ast.Lambda) and _is_generator(inner):
            self.escape_body(inner.body, scope.id)
            return self.unknown(node, *positional, *keywords.values())
        frame, before, marks = Frame(scope.id, inner), self.fork(), self.marks()
        result = self._followed(frame, inner, node)
        if frame.has_recursed:
            self.back_to(marks)
            self.live = before
            again = Frame(scope.id, inner)
            again.log |= {(id, key) for id, key in frame.log if id in before.objects}
            self._lose_keys(again.log)
            self._followed(again, inner, node)
            self._lose_keys(again.log)
            result = self.unknown(node, result, *positional, *keywords.values())
        if function.wrapper and function.wrapper not in ("@command", "@main", "@hydra_main"):
            return self.unknown(node, result)
        return result

    def unfollowed(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        """A call of a function that is not followed."""
        raise NotImplementedError

    def hydra_config(self, function: Function, node: ast.AST) -> Any:
        """The configuration that hydra hands to a function; None if it is not known."""
        raise NotImplementedError

    def _lose_keys(self, keys: set[tuple[int, Any]]) -> None:
        for id, key in list(keys):
            if id in self.heap.objects and key != "\0history":
                self.lose(id, key)

    def marks(self) -> list[int]:
        """How much has been recorded, to go back to."""
        raise NotImplementedError

    def back_to(self, marks: list[int]) -> None:
        """Forget what has been recorded since."""
        raise NotImplementedError

    def _followed(self, frame: Frame, inner: ast.AST, node: ast.AST) -> Any:
        """What the body of a function returns."""
        self.reached.add(inner)
        self.frames.append(frame)
        self.logs.append(frame.log)
        loops, self.loops = self.loops, []
        certain = self.certain
        try:
            if isinstance(inner, ast.Lambda):
                return self.value(inner.body)
            assert isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef))
            self.block(inner.body)
            if self.live is not None:
                frame.returns.append((None, self.live))
            if not frame.returns:
                self.live = None
                raise Raised
            result, self.live = frame.returns[0]
            for value, heap in frame.returns[1:]:
                result = joined(result, value, self.text(node))
                self.live = self.join(self.live, heap)
            return result
        finally:
            self.logs.pop()
            self.frames.pop()
            self.loops, self.certain = loops, certain

    def _outer(self, env: int) -> int:
        """The scope that a function's body sees: class scopes are skipped."""
        while self.at(env).cls == "class":
            env = self.at(env).parent or self.module
        return env

    def _arguments(
        self, function: Function, positional: list[Any], keywords: dict[str, Any], node: ast.AST, spread: bool
    ) -> dict[Any, Any]:
        """Parameters with their values; unknown ones for what an unknown ``**kwargs`` may have set."""
        parameters = function.node.args
        keywords = dict(keywords)
        bound: dict[Any, Any] = {}
        names = [parameter.arg for parameter in (*parameters.posonlyargs, *parameters.args)]
        defaults = dict(zip(names[len(names) - len(function.defaults) :], function.defaults, strict=True))
        kwonly = [parameter.arg for parameter in parameters.kwonlyargs]
        defaults |= {
            name: value for name, value in zip(kwonly, function.keyword_defaults, strict=True) if value is not MISSING
        }
        bound |= dict(zip(names, positional, strict=False))
        if parameters.vararg:
            bound[parameters.vararg.arg] = Unknown("*args") if spread else tuple(positional[len(names) :])
        for name in (*names, *kwonly):
            if name in bound:
                continue
            if name in keywords:
                bound[name] = keywords.pop(name)
            elif spread or name not in defaults:
                bound[name] = Unknown(name, refs_of([defaults.get(name)]))
            else:
                bound[name] = defaults[name]
        if parameters.kwarg:
            rest = self.new("dict", slots=dict(keywords), is_open="**kwargs" if spread else "")
            bound[parameters.kwarg.arg] = rest
        return bound

    def _lose_everything(self, text: str) -> None:
        """After a call that is not followed: whatever the script can change may have changed."""
        for id, item in list(self.heap.objects.items()):
            self.step()
            if item.kind in ("list", "dict", "set", "instance"):
                self.lose(id, "*", text)
            elif item.kind == "scope":
                for name, value in list(item.slots.items()):
                    if not isinstance(value, (Function, Library, Module)) and not (
                        isinstance(value, Ref) and self.at(value).kind == "class"
                    ):
                        self.lose(id, name, name)

    # -- functions that something else calls ---------------------------------------------------------------------------

    def escape(self, values: list[Any]) -> None:
        """Functions that are passed to a library may run at any time: what they write stays unknown."""
        for value in values:
            if isinstance(value, Bound) and value.function is not None:
                self._run_escaped(value.function, [value.receiver])
            elif isinstance(value, Bound) and isinstance(value.receiver, (Ref, Attributes)):
                if value.name not in READ_ONLY:
                    self.spoil(value.receiver.id, "*")
            elif isinstance(value, Function):
                self._run_escaped(value, [])

    def _run_escaped(self, function: Function, positional: list[Any], keywords: dict[str, Any] | None = None) -> None:
        if len(self.frames) > 6 or any(frame.function is function.node for frame in self.frames):
            return
        if self.steps > MOST_SHARE and self.module_of(function.env) != self.main:
            return
        names, outer = _bound_names(function.node)
        bound = self._arguments(function, positional, keywords or {}, function.node, True)
        scope = self.new(
            "scope", cls="function", slots=bound, parent=self._outer(function.env), names=names, outer=outer
        )
        body: list[ast.stmt] = (
            [ast.Expr(function.node.body)] if isinstance(function.node, ast.Lambda) else function.node.body
        )
        self.escape_body(body, scope.id, function.node)

    def escape_body(self, body: list[ast.stmt], scope: int, node: Any = None) -> None:
        """Follow statements that may run, at any time; names and objects that they write stay unknown."""
        if node is not None:
            self.reached.add(node)
        before, certain = self.fork(), self.certain
        outside = set(before.objects)
        log: set[tuple[int, Any]] = set()
        self.logs.append(log)
        self.frames.append(Frame(scope, node))
        loops, self.loops = self.loops, []
        self.certain = False
        after: Any = None
        try:
            self.block(body)
            after = self.live
        except Raised:
            after = self.live
        finally:
            self.logs.pop()
            for _, heap in self.frames.pop().returns:
                after = self.join(after, heap)
            self.loops, self.certain = loops, certain
        self.live = self.join(after, before) if after is not None else before
        for id, key in log:
            if id in outside and id != scope:
                self.spoil(id, key)

    def spoil(self, id: int, key: Any) -> None:
        """Something that may run at any time writes this."""
        if key == "\0history":
            return
        self.lose(id, key)
        item = self.change(id, key)
        item.spoiled |= {key}

    # -- classes -------------------------------------------------------------------------------------------------------

    def define_class(self, node: ast.ClassDef) -> Any:
        """The value that a class definition binds."""
        bases = [self.value(base) for base in node.bases]
        for keyword in node.keywords:
            self.value(keyword.value)
        scope = self.new("scope", cls="class", parent=self.scope)
        self.frames.append(Frame(scope.id, None))
        self.frames[-1].returns = self.frames[-2].returns
        try:
            self.block(node.body)
        finally:
            self.frames.pop()
        if self.live is None:
            raise Raised
        slots = dict(self.at(scope).slots)
        decorators = [self.text(decorator) for decorator in node.decorator_list]
        values = [self.value(decorator) for decorator in node.decorator_list]
        is_dataclass = any("dataclass" in text or "define" in text for text in decorators)
        ref = self.new("class", slots=slots, items=bases, node=node, cls="dataclass" if is_dataclass else "")
        for name, value in list(slots.items()):
            if isinstance(value, Function) and value.owner == scope.id:
                slots[name] = self._with(value, owner=ref.id)
                self.owners[id(value.node)] = ref.id
        self.change(ref.id, "*").slots.update(slots)
        if any(isinstance(base, Library) and "Enum" in base.last for base in bases) or node.keywords:
            self.lose(ref.id, "*", self.text(node))
        if any(DYNAMIC_CLASS & set(self.at(base).slots) for base in bases if isinstance(base, Ref)):
            self.lose(ref.id, "*", self.text(node))
        own = [value for value in values if isinstance(value, (Function, Ref))]
        if own or (decorators and not is_dataclass and not all("." in text or "(" in text for text in decorators)):
            self.lose(ref.id, "*", "a class decorator")
        return ref


def _is_generator(node: ast.AST) -> bool:
    """Whether a function yields."""
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        child = waiting.pop()
        if isinstance(child, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            waiting += ast.iter_child_nodes(child)
    return False


def _bound_names(node: ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[frozenset[str], dict[str, str]]:
    """(names that a function binds, names that it declares global or nonlocal)."""
    cached = getattr(node, "vramplan_names", None)
    if cached is not None:
        return cached  # type: ignore[no-any-return]
    names: set[str] = set()
    outer: dict[str, str] = {}
    waiting: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    while waiting:
        child = waiting.pop()
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(child.name)
            waiting += child.decorator_list
            continue
        if isinstance(child, ast.Lambda):
            continue
        if isinstance(child, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            names |= {
                part.target.id
                for part in ast.walk(child)
                if isinstance(part, ast.NamedExpr) and isinstance(part.target, ast.Name)
            }
            continue
        if isinstance(child, ast.Name) and isinstance(child.ctx, (ast.Store, ast.Del)):
            names.add(child.id)
        elif isinstance(child, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in child.names}
        elif isinstance(child, (ast.Global, ast.Nonlocal)):
            outer |= dict.fromkeys(child.names, "global" if isinstance(child, ast.Global) else "nonlocal")
        elif (isinstance(child, ast.ExceptHandler) and child.name) or (
            isinstance(child, (ast.MatchAs, ast.MatchStar)) and child.name
        ):
            names.add(child.name)
        elif isinstance(child, ast.MatchMapping) and child.rest:
            names.add(child.rest)
        waiting += ast.iter_child_nodes(child)
    result = (frozenset(names - outer.keys()), outer)
    node.vramplan_names = result  # type: ignore[union-attr]
    return result
