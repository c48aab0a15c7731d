"""Instances of the script's own classes: dataclasses, and subclasses of a library's classes."""

from __future__ import annotations

import ast
from typing import Any

from vramplan.frameworks.syntax.python.machine import BUILTINS, Function, is_trusted
from vramplan.frameworks.syntax.python.memory import MISSING
from vramplan.frameworks.syntax.python.statements import Statements
from vramplan.frameworks.syntax.python.usual_steps import is_usual
from vramplan.frameworks.syntax.python.values import Bound, Library, Ref, Super, Unknown, refs_of

PLAIN_BASES = frozenset(["object", "ABC", "Generic", "Protocol", "BaseModel", "NamedTuple"])
"""Bases that leave the constructor to the script, or make one of the annotated fields."""
RECORDS = frozenset({"BaseModel", "NamedTuple"})
NOTHING = Library("dataclasses.MISSING")
DYNAMIC = frozenset({"__getattr__", "__getattribute__", "__setattr__", "__new__", "__init_subclass__"})


class Classes(Statements):
    """Follows the construction of objects."""

    def ancestry(self, ref: Ref) -> tuple[list[Ref], Library | None, bool]:
        """(the script's classes from this one up, the library's class behind them, whether all is known)."""
        own, known = [ref], True
        while True:
            bases = [base for base in self.at(own[-1]).items or [] if not _is_plain(base)]
            known = known and not self.at(own[-1]).is_open
            if not bases:
                return own, None, known
            if isinstance(bases[0], Ref) and self.at(bases[0]).kind == "class" and len(own) < 20:
                own.append(bases[0])
                known = known and len(bases) == 1
                continue
            library = bases[0] if isinstance(bases[0], Library) else None
            for base in bases[1:]:
                if isinstance(base, Ref) and self.at(base).kind == "class":
                    known = False
            return own, library, known and library is not None

    def fields(self, own: list[Ref], node: ast.AST) -> dict[str, Any]:
        """Fields of dataclasses with their defaults; unknown ones without a default."""
        fields: dict[str, Any] = {}
        for ref in reversed(own):
            item = self.at(ref)
            is_record = any(isinstance(base, Library) and base.last in RECORDS for base in item.items or [])
            if item.cls != "dataclass" and not is_record and not (fields and is_record):
                continue
            for statement in item.node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    name = statement.target.id
                    if "ClassVar" not in self.text(statement.annotation):
                        fields[name] = self._default(item.slots.get(name, Unknown(name)), name, node)
        return fields

    def described_fields(self, value: Any, node: ast.AST) -> Any:
        """``dataclasses.fields``: objects with name, type and default; NotImplemented for what is no dataclass here."""
        cls = self.at(value).cls if isinstance(value, Ref) and self.at(value).kind == "instance" else value
        if not isinstance(cls, Ref) or self.at(cls).kind != "class":
            return NotImplemented
        own, library, known = self.ancestry(cls)
        if library is not None or not known or any(self.at(ref).cls != "dataclass" for ref in own):
            return NotImplemented
        kinds = self.annotations(cls)
        described: list[Any] = []
        for name in self.fields(own, node):
            default = next((self.at(ref).slots[name] for ref in own if name in self.at(ref).slots), MISSING)
            slots: dict[str, Any] = {"default": default, "default_factory": NOTHING}
            if default is MISSING:
                slots["default"] = NOTHING
            elif isinstance(default, Ref) and self.at(default).cls == "field":
                slots = {key: self.at(default).slots.get(key, NOTHING) for key in slots}
            slots |= {"name": name, "type": self._kind(kinds[name])}
            described.append(self.new("instance", cls="namespace", slots=slots))
        return tuple(described)

    def _kind(self, annotation: ast.expr) -> Any:
        """What an annotation comes to: one of Python's own types, or its text where annotations are not evaluated."""
        if getattr(annotation, "vramplan_source", self.source).where in self.deferred:
            return ast.unparse(annotation)
        is_own = isinstance(annotation, ast.Name) and annotation.id in BUILTINS
        return Library(f"builtins.{annotation.id}") if is_own else Unknown(self.text(annotation))  # type: ignore[attr-defined]

    def annotations(self, cls: Ref) -> dict[str, ast.expr]:
        """The annotations of a class's fields, those of its bases too."""
        kinds: dict[str, ast.expr] = {}
        for ref in reversed(self.ancestry(cls)[0]):
            for statement in self.at(ref).node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    kinds[statement.target.id] = statement.annotation
        return kinds

    def _default(self, value: Any, name: str, node: ast.AST) -> Any:
        if not (isinstance(value, Ref) and self.at(value).cls == "field"):
            return value
        slots = self.at(value).slots
        if "default" in slots:
            return slots["default"]
        if "default_factory" in slots:
            return self.apply(slots["default_factory"], [], {}, node)
        return Unknown(name)

    def _construct(
        self, ref: Ref, positional: list[Any], keywords: dict[str, Any], node: ast.AST, spread: Any,
        texts: dict[str, ast.AST] | None,
    ) -> Any:  # fmt: skip
        """An instance of one of the script's classes."""
        own, library, known = self.ancestry(ref)
        if self.at(ref).node.name == "H4ArgumentParser" and library is not None:
            return self.parse(library, positional, keywords, node)
        thing = self.new("instance", cls=ref)
        init = self._method_of(own, "__init__")
        fields = {} if init is not None else self.fields(own, node)
        if library is not None:
            self.change(thing.id, "*").cls = library
            if init is None:
                self._base_init(thing, own, library, positional, fields | keywords, node, spread, texts)
        elif init is None and fields:
            names = list(fields)
            values = dict(zip(names, positional, strict=False)) | keywords
            fields |= {key: value for key, value in values.items() if key in fields}
            if spread is not None:
                fields = {key: Unknown(key, refs_of([value])) for key, value in fields.items()}
            self.change(thing.id, "*").slots.update(fields)
        if init is not None:
            self.follow(init, [thing, *positional], keywords, node, spread is not None)
            if library is not None and self.at(thing).call is None:
                self._base_init(thing, own, library, [], {}, node, "arguments of its base class", None)
        else:
            post = self._method_of(own, "__post_init__")
            if post is not None:
                self.follow(post, [thing], {}, node)
        if not known or any(self._method_of(own, name) is not None for name in DYNAMIC):
            self.lose(thing.id, "*", self.text(node))
        if any(self._method_of(own, name) is not None for name in DYNAMIC):
            self.change(thing.id, "*").spoiled |= {"*"}
        if library is not None:
            self._run_methods(thing, own, library)
        return thing

    def parse(self, function: Library, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        """A parser of the command's flags."""
        raise NotImplementedError

    def _method_of(self, own: list[Ref], name: str) -> Function | None:
        for ref in own:
            value = self.at(ref).slots.get(name)
            if isinstance(value, Function):
                return value
        return None

    def _base_init(
        self, thing: Ref, own: list[Ref], library: Library, positional: list[Any], keywords: dict[str, Any],
        node: ast.AST, spread: Any, texts: dict[str, ast.AST] | None,
    ) -> None:  # fmt: skip
        """What the constructor of a library's class is called with."""
        call = self.record(library.name, node, positional, keywords, spread, texts)
        call.overrides = tuple(
            dict.fromkeys(
                name
                for ref in own
                for name, value in self.at(ref).slots.items()
                if isinstance(value, Function) and not name.startswith("__") and not is_usual(value.node, library.last)
            )
        )
        call.subclass = str(getattr(self.at(own[0]).node, "name", ""))
        call.line = getattr(node, "lineno", 1)
        item = self.change(thing.id, "*")
        item.slots.update(keywords)
        item.slots.update({f"\0{number}": value for number, value in enumerate(positional)})
        item.call = call
        self.adopt(thing, call)

    def adopt(self, thing: Ref, call: Any) -> None:
        """Keep a library's object, and note that others were passed to it."""
        slots = self.at(thing).slots
        self.change(thing.id, "*").node = dict(slots)
        if call.last.endswith("Trainer") or call.last == "from_pretrained":
            for id in refs_of(slots.values()):
                if id in self.heap.objects and self.at(id).kind == "instance" and self._is_config(id):
                    self.change(id, "\0used").used = call.place
        passed = [value for value in slots.values() if isinstance(value, Ref) or not getattr(value, "path", "")]
        self.happen(refs_of(passed) - {thing.id}, call.name, call)
        self.things.append(thing.id)

    def _is_config(self, id: int) -> bool:
        cls = self.at(id).cls
        return isinstance(cls, Library) and cls.last.endswith(("Arguments", "Config"))

    def _run_methods(self, thing: Ref, own: list[Ref], library: Library) -> None:
        """Methods that the library will call, at any time."""
        seen: set[str] = set()
        for ref in own:
            for name, value in self.at(ref).slots.items():
                if isinstance(value, Function) and name not in seen and name not in ("__init__", "__post_init__"):
                    seen.add(name)
                    first = [] if value.kind == "staticmethod" else [thing]
                    passed = _callback_arguments(name) if library.last.endswith("Callback") else ([], {})
                    self._run_escaped(value, [*first, *passed[0]], passed[1])

    def _super_method(
        self, receiver: Super, name: str, positional: list[Any], keywords: dict[str, Any], node: ast.AST, spread: Any,
        texts: dict[str, ast.AST] | None,
    ) -> Any:  # fmt: skip
        """``super().name(...)``."""
        thing = Ref(receiver.id)
        own, library, known = self.ancestry(Ref(receiver.owner))
        method = self._method_of(own[1:], name)
        if method is not None:
            return self.follow(method, [thing, *positional], keywords, node, spread is not None)
        if name == "__init__" and library is not None:
            cls = self.at(thing).cls
            everything = own
            if isinstance(cls, Library) and self.at(thing).call is None:
                self._base_init(thing, everything, library, positional, keywords, node, spread, texts)
            return None
        if name == "__init__" and known and own[1:]:
            fields = self.fields(own[1:], node)
            names = list(fields)
            fields |= {k: v for k, v in (dict(zip(names, positional, strict=False)) | keywords).items() if k in fields}
            self.change(thing.id, "*").slots.update(fields)
            return None
        if name in ("__init__", "__post_init__"):
            return None
        if not (library is not None and is_trusted(library)):
            self.lose_all([thing, *positional, *keywords.values()], self.text(node))
        return self.unknown(node, thing, *positional, *keywords.values())


def _callback_arguments(name: str) -> tuple[list[Any], dict[str, Any]]:
    """What a Trainer calls a method of a callback with (transformers 5.23, trainer_callback.py: call_event)."""
    if not name.startswith("on_"):
        return [], {}
    texts = ("args", "state", "control", "model")
    args, state, control, model = (Unknown(text, frozenset(), f"callback_{text}", True) for text in texts)
    return [args, state, control], {"model": model}


def _is_plain(base: Any) -> bool:
    return isinstance(base, Library) and base.last in PLAIN_BASES


__all__ = ["Bound", "Classes"]
