"""Follow a whole script, and keep what its trainings were given."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from vramplan.frameworks.settings import ConfigValue
from vramplan.frameworks.syntax.python.access import OMEGACONF
from vramplan.frameworks.syntax.python.calls import Calls
from vramplan.frameworks.syntax.python.machine import Raised
from vramplan.frameworks.syntax.python.memory import MISSING
from vramplan.frameworks.syntax.python.script import Call, Script, Thing, Training
from vramplan.frameworks.syntax.python.values import Attributes, Function, Library, Ref, Unknown, refs_of
from vramplan.frameworks.syntax.shell import UNKNOWN


class Follower(Calls):
    """Follows a script from its first line to its last."""

    def read(self, tree: ast.Module) -> Script:
        """The calls, trainings and objects."""
        start = self.heap
        self.script.names = _bound(tree)
        try:
            self.block(tree.body)
            self._enter()
        except Raised:
            self.live = None
        self.script.ends_at = self.raised if self.live is None else ""
        self.live = self.live or self.ended or start
        done: dict[int, Thing] = {}
        variables = self.at(self.environ).slots
        self.script.environment = {name: text for name, text in variables.items() if isinstance(text, str)}
        ids = [id for id in dict.fromkeys(self.things) if id in self.heap.objects]
        self.script.things = [self.thing(id, done) for id in ids]
        self.script.objects = done
        self._unreached()
        return self.script

    def _enter(self) -> None:
        """Follow the one function that a package's entry point calls, if the file itself trains nothing."""
        if self.live is None or any(call.last.endswith("Trainer") for call in self.script.calls):
            return
        commands = {function.node: function for function in self.commands.values()}
        functions = [value for value in self.at(self.main).slots.values() if isinstance(value, Function)]
        waiting = [one for one in functions if one.node not in self.reached and _is_entry(one, commands)]
        if len(waiting) == 1 and waiting[0].node in commands and not waiting[0].options:
            self.run_with_flags(commands[waiting[0].node], waiting[0].node)
        elif len(waiting) == 1:
            self.follow(waiting[0], [], {}, waiting[0].node)

    def _unreached(self) -> None:
        """Follow functions that nothing seems to call, for the calls in them."""
        calls, trainings = self.script.calls, list(self.script.trainings)
        self.script.calls = []
        for function in self.defined:
            if function.node not in self.reached and function.env in self.heap.objects:
                self._run_escaped(function, [])
        self.script.unreached, self.script.calls = self.script.calls, calls
        self.script.trainings = trainings

    def trained(self, ids: list[int], call: Call) -> None:
        """Keep the state of trainers whose ``train`` is called."""
        for id in ids:
            item = self.at(id)
            if isinstance(item.cls, Library) and item.call is not None and item.cls.last.endswith("Trainer"):
                self.script.trainings.append(Training(call.place, self.certain, self.thing(id, {})))

    def thing(self, id: int, done: dict[int, Thing]) -> Thing:
        """An object with its values as they are now."""
        if id in done:
            return done[id]
        item = self.at(id)
        first: Call = item.call
        call = Call(
            first.name, first.line, first.place, list(first.positional), {}, first.certain, first.refs,
            first.overrides, first.subclass, first.from_command, first.condition,
        )  # fmt: skip
        result = done[id] = Thing(call, is_lost=item.is_open)
        places = {event.name: event.call.place for event in item.history if event.name.endswith("=")}
        self.step(len(item.slots))
        for key, value in item.slots.items():
            self._part(result, key, value, done)
            if not isinstance(key, str) or key.startswith("\0"):
                continue
            old = first.keywords.get(key)
            if old is not None and (item.node or {}).get(key, call) is value and not self._is_shared(first, key, value):
                call.keywords[key] = old
                continue
            plain = self.plain(value, key)
            if old is not None and _is_alike(old.value, plain):
                call.keywords[key] = old
            else:
                call.keywords[key] = ConfigValue(plain, places.get(f".{key}=", first.place))
        if "**" in first.keywords:
            call.keywords["**"] = first.keywords["**"]
        result.history = [(event.name, event.call, event.certain) for event in item.history]
        return result

    def _is_shared(self, call: Call, key: Any, value: Any) -> bool:
        """Whether an argument is a list or dictionary of the script that the object does not copy."""
        if call.last == "LoraConfig" and key in ("target_modules", "exclude_modules"):
            return False  # a set of it (peft 0.21, tuners/lora/config.py)
        return isinstance(value, (Ref, Attributes)) and self.at(value.id).kind in ("list", "dict", "set")

    def _part(self, result: Thing, key: Any, value: Any, done: dict[int, Thing]) -> None:
        if isinstance(value, Ref) and self.at(value).kind == "dict" and self.at(value).cls in (None, OMEGACONF):
            for name, inner in self.at(value).slots.items():
                if isinstance(inner, (Ref, Unknown)) and not (isinstance(inner, Ref) and self.at(inner).kind == "dict"):
                    self._part(result, f"{key}.{name}", inner, done)
        values = [value]
        if isinstance(value, Ref) and self.at(value).kind == "list" and not self.at(value).is_open:
            values = list(self.at(value).items or [])
        ids = [
            id
            for id in dict.fromkeys(id for one in values for id in sorted(refs_of([one])))
            if id in self.heap.objects and self.at(id).kind == "instance" and self.at(id).call is not None
        ]
        if ids and len(done) < 500:
            name = int(key[1:]) if isinstance(key, str) and key[:1] == "\0" and key[1:].isdigit() else key
            result.parts[name] = [self.thing(id, done) for id in ids]
            result.is_certain[name] = all(isinstance(one, Ref) for one in values)


def _is_entry(function: Function, commands: Mapping[Any, Any]) -> bool:
    """Whether a function is a command of typer's, click's or hydra's, or a main without arguments."""
    arguments = function.node.args
    has_required = len(arguments.args) > len(function.defaults) or MISSING in function.keyword_defaults
    is_main = getattr(function.node, "name", "") == "main" and not function.wrapper and not has_required
    return function.node in commands or function.wrapper in ("@command", "@hydra_main") or is_main


def _is_alike(old: Any, new: Any) -> bool:
    if isinstance(old, str) and isinstance(new, str) and UNKNOWN in old and UNKNOWN in new:
        return True
    return type(old) is type(new) and bool(old == new)


def _bound(tree: ast.Module) -> set[str]:
    """Names that a script assigns, imports or takes as parameters."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return names
