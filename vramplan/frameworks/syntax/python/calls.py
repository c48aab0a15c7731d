"""Calls: of Python's own functions, of the script's, and of libraries, whose objects keep a history."""

from __future__ import annotations

import ast
from typing import Any

from vramplan.frameworks.syntax.python import trl_functions
from vramplan.frameworks.syntax.python.arithmetic import NotKnown, text_method
from vramplan.frameworks.syntax.python.data_files import DataFiles
from vramplan.frameworks.syntax.python.files import DUMPS
from vramplan.frameworks.syntax.python.functions import READ_ONLY
from vramplan.frameworks.syntax.python.machine import Function, Raised, is_trusted
from vramplan.frameworks.syntax.python.script import Call
from vramplan.frameworks.syntax.python.values import (
    Attributes,
    Bound,
    FilePath,
    Library,
    Ref,
    Super,
    Unknown,
    is_known,
    refs_of,
)

DEEP_COPIES = ("copy.deepcopy", "trl.create_reference_model", "trl.experimental.utils.create_reference_model")
"""Functions that copy their one argument whole (trl 0.28, models/utils.py; without arguments that share layers)."""
BF16_QUERIES = ("is_bf16_supported", "is_torch_bf16_gpu_available", "is_torch_bf16_available")
"""Functions of torch and transformers that are true on every GPU: bf16 is emulated (torch 2.13, cuda/__init__.py)."""
ENDS = ("sys.exit", "builtins.exit", "builtins.quit", "os._exit", "os.abort")
PASSES_ON = ("fire.Fire", "typer.run", "tyro.cli", "jsonargparse.CLI", "asyncio.run", "absl.app.run", "app.run")
"""Functions that call a function of the script with the command's flags."""
LAUNCHER_VARIABLES = frozenset(
    ["WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "GROUP_RANK"]
)
"""Environment variables that a launcher sets."""
RETURN_SELF = frozenset(
    [
        "cuda",
        "to",
        "cpu",
        "float",
        "half",
        "bfloat16",
        "double",
        "eval",
        "train",
        "merge_and_unload",
        "unload",
        "requires_grad_",
        "to_bettertransformer",
        "compile",
        "base_model",
        "get_base_model",
    ]
)
"""Methods of a model that return it."""
RETURN_FIRST = ("get_peft_model", "prepare_model_for_kbit_training", "prepare_model")
"""Functions of PEFT, unsloth and accelerate that return the model that they are given, and nothing of their others."""
EFFECTIVE_BUILTINS = ("exec", "eval", "compile", "globals", "locals", "__import__")


class Calls(DataFiles):
    """Follows calls."""

    def _call(self, node: ast.Call) -> Any:
        function = self.value(node.func)
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("add_argument", "parse_args"):
            function = self.implicit_parser(node.func, function)
        positional = self.items(node.args)
        keywords: dict[str, Any] = {}
        texts: dict[str, ast.AST] = {}
        spread: Any = None
        if positional is None:
            positional = [self.unknown(part) for part in node.args if not isinstance(part, ast.Starred)]
            spread = "*" + self.text(next(part for part in node.args if isinstance(part, ast.Starred)).value)
        for keyword in node.keywords:
            value = self.value(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg], texts[keyword.arg] = value, keyword.value
                continue
            pairs = self.pairs(value)
            if pairs is None or not all(isinstance(key, str) for key, _ in pairs):
                spread = self.text(keyword.value)
                continue
            for key, inner in pairs:
                keywords[key], texts[key] = inner, keyword.value
        if self.live is None:
            raise Raised
        if isinstance(node.func, ast.Name) and node.func.id in self.commands and not isinstance(function, Function):
            return self.run_with_flags(self.commands[node.func.id], node)
        return self.apply(function, positional, keywords, node, spread, texts)

    def apply(
        self,
        function: Any,
        positional: list[Any],
        keywords: dict[str, Any],
        node: ast.AST,
        spread: Any = None,
        texts: dict[str, ast.AST] | None = None,
    ) -> Any:
        """What a call returns."""
        if isinstance(function, Function):
            return self.follow(function, positional, keywords, node, spread is not None)
        if isinstance(function, Bound):
            return self._method(function, positional, keywords, node, spread, texts)
        if isinstance(function, Ref):
            item = self.at(function)
            if item.kind == "class":
                return self._construct(function, positional, keywords, node, spread, texts)
            if item.kind == "dict" and item.cls == "partial":
                return self._partial(function, positional, keywords, node, spread)
            if isinstance(item.cls, Ref):
                method = self.attribute(function, "__call__", node)
                if isinstance(method, Bound) and method.function is not None:
                    return self.follow(method.function, [function, *positional], keywords, node, spread is not None)
            return self._called_object(function, positional, keywords, node, spread, texts)
        if isinstance(function, Library):
            return self._library(function, positional, keywords, node, spread, texts)
        return self._unfollowed(function, positional, keywords, node, spread, texts)

    # -- Python's own --------------------------------------------------------------------------------------------------

    def _library(
        self, function: Library, positional: list[Any], keywords: dict[str, Any], node: ast.AST, spread: Any,
        texts: dict[str, ast.AST] | None,
    ) -> Any:  # fmt: skip
        name, last = function.name, function.last
        if name in ENDS:
            raise Raised
        if name.startswith("builtins.") and name.count(".") == 1 and last in EFFECTIVE_BUILTINS:
            return self._effective(last, positional, node)
        values = [*positional, *keywords.values()]
        if name.startswith("builtins.") and name.count(".") == 1 and spread is None:
            handler = getattr(self, f"_builtin_{last}", None)
            if handler is not None:
                try:
                    return handler(positional, keywords, node)
                except NotKnown:
                    pass
            if last == "super":
                return self._super(positional, node)
            if last == "print":
                return None
        special = self._special(name, last, positional, keywords, node)
        if special is not NotImplemented:
            return special
        parsed = trl_functions.made(self, function, positional, node)
        if parsed is NotImplemented:
            parsed = self.parse(function, positional, keywords, node)
        if parsed is not NotImplemented:
            return parsed
        if (
            name in PASSES_ON or (last in ("Fire", "CLI", "cli", "run") and self._is_own(positional[:1]))
        ) and positional:
            return self.run_with_flags(positional[0], node)
        call = self.record(name, node, positional, keywords, spread, texts)
        owner = name.rpartition(".")[0].rpartition(".")[2]
        self.escape(values)
        if (last[:1].isupper() and not last.isupper()) or last in ("from_pretrained", "from_config"):
            is_two = last == "from_pretrained" and owner.startswith("Fast")
            thing = self._thing(function, call, positional, keywords)
            if is_two:  # unsloth's: a model and its tokenizer
                tokenizer = Call("unsloth.Tokenizer.from_pretrained", call.line, call.place)
                cls = Library("unsloth.Tokenizer.from_pretrained")
                return (thing, self.new("instance", cls=cls, call=tokenizer))
            if not is_trusted(function):
                self.lose_all(values, self.text(node))
            return thing
        self._pass(function, call, values, node)
        if last == "unsloth_train" and positional:
            self.trained([id for id in refs_of(positional[:1]) if id in self.heap.objects], call)
        if last in RETURN_FIRST and is_trusted(function):
            values = positional[:1] or [keywords.get("model")]
        return self._result(function, node, values)

    def _is_own(self, values: list[Any]) -> bool:
        return any(isinstance(v, Function) or (isinstance(v, Ref) and self.at(v).kind == "class") for v in values)

    def _result(self, function: Any, node: ast.AST, values: list[Any]) -> Unknown:
        """What a function that is not followed returns: anything, also what it was given."""
        whole = [value for value in values if not (isinstance(value, Unknown) and value.path)]
        return Unknown(self.text(node), refs_of(whole), "", is_trusted(function))

    def trained(self, ids: list[int], call: Any) -> None:
        """A trainer's ``train`` is called."""
        raise NotImplementedError

    def _pass(self, function: Any, call: Any, values: list[Any], node: ast.AST) -> None:
        """Note for objects that they were passed to a function."""
        trusted = is_trusted(function)
        for value in values:
            if isinstance(value, Ref) or (isinstance(value, Unknown) and not value.path):
                self.happen(refs_of([value]), call.name or self.text(node), call)
                if call.last in ("get_peft_model", "add_adapter"):
                    for id in refs_of([value]):
                        if id in self.heap.objects and self.at(id).kind == "instance" and self._is_config(id):
                            self.change(id, "\0used").used = call.place
        if not trusted:
            self.lose_all(values, self.text(node))

    def _thing(self, function: Library, call: Any, positional: list[Any], keywords: dict[str, Any]) -> Ref:
        """A library's object, with its keyword arguments as attributes."""
        slots: dict[Any, Any] = dict(keywords)
        for number, value in enumerate(positional):
            slots[f"\0{number}"] = value
        thing = self.new("instance", cls=function, slots=slots, call=call)
        self.adopt(thing, call)
        return thing

    def _effective(self, last: str, positional: list[Any], node: ast.AST) -> Any:
        if last in ("globals", "locals"):
            return Attributes(self.module if last == "globals" else self.scope)
        if last == "__import__" and positional and isinstance(positional[0], str):
            return Library(positional[0].partition(".")[0])
        if last == "eval" and positional and isinstance(positional[0], str):
            return self.unknown(node)
        self._lose_everything(self.text(node))
        return self.unknown(node)

    def _special(self, name: str, last: str, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        """Functions of libraries whose results are known; NotImplemented for others."""
        if name in ("os.environ.get", "os.getenv"):
            return self._variable(positional, keywords, node)
        if name in ("torch.cuda.is_available",):
            return True
        if name in DUMPS:
            self.dump(name, positional, keywords)
        if last == "get_device_capability":
            known = self.gpu is not None and self.gpu.compute_capability
            return tuple(self.gpu.capability) if known and self.gpu else self.unknown(node)
        if last in BF16_QUERIES:
            if keywords.get("including_emulation", True) is True:
                return True
            return self.gpu is None or self.gpu.supports("bf16")
        if last == "is_bfloat16_supported":  # unsloth's
            return self.gpu is None or self.gpu.supports("bf16")
        if name in ("copy.copy", *DEEP_COPIES) and len(positional) == 1 and not keywords:
            return self.copied(positional[0], name in DEEP_COPIES, node)
        if name == "dataclasses.replace" and positional and isinstance(positional[0], Ref):
            copy = self.copied(positional[0], False, node)
            for key, value in keywords.items():
                self.set_replaced(copy, key, value)
            return copy
        if name in ("functools.partial",) and positional:
            return self.new(
                "dict", cls="partial", slots={"\0f": positional[0], "\0a": tuple(positional[1:])} | keywords
            )
        if name == "dataclasses.fields" and len(positional) == 1:
            return self.described_fields(positional[0], node)
        if name == "dataclasses.asdict" and positional and isinstance(positional[0], Ref):
            item = self.at(positional[0])
            return self.new("dict", slots=dict(item.slots), is_open=item.is_open)
        read = self.read_call(name, positional, keywords, node)
        if read is not NotImplemented:
            return read
        if last == "SimpleNamespace" and not positional:
            return self.new("instance", cls="namespace", slots=dict(keywords))
        if name == "collections.OrderedDict" and not positional and not keywords:
            return self.new("dict")
        return NotImplemented

    def _partial(self, ref: Ref, positional: list[Any], keywords: dict[str, Any], node: ast.AST, spread: Any) -> Any:
        item = self.at(ref)
        slots = {key: value for key, value in item.slots.items() if not str(key).startswith("\0")}
        arguments = item.slots["\0a"] if type(item.slots["\0a"]) is tuple else ()
        return self.apply(item.slots["\0f"], [*arguments, *positional], slots | keywords, node, spread)

    def _super(self, positional: list[Any], node: ast.AST) -> Any:
        frame = self.frames[-1]
        function = frame.function
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)] if function is not None else []
        receiver = self.at(frame.scope).slots.get(names[0]) if names else None
        owner = self.owners.get(id(function))
        if isinstance(receiver, Ref) and owner is not None:
            return Super(receiver.id, owner)
        return self.unknown(node, receiver)

    # -- objects -------------------------------------------------------------------------------------------------------

    def _called_object(
        self, function: Ref, positional: list[Any], keywords: dict[str, Any], node: ast.AST, spread: Any,
        texts: dict[str, ast.AST] | None,
    ) -> Any:  # fmt: skip
        name = self.text(node.func) if isinstance(node, ast.Call) else ""
        cls = self.at(function).cls
        if isinstance(cls, Library) and cls.last.endswith("Evaluator"):
            name = f"{cls.last}.__call__"
        call = self.record(
            name if name.replace(".", "").isidentifier() else "", node, positional, keywords, spread, texts
        )
        values = [*positional, *keywords.values()]
        self.escape(values)
        self._pass(cls, call, values, node)
        return self.unknown(node, function, *values, path="()")

    def _method(
        self, bound: Bound, positional: list[Any], keywords: dict[str, Any], node: ast.AST, spread: Any,
        texts: dict[str, ast.AST] | None,
    ) -> Any:  # fmt: skip
        receiver, name = bound.receiver, bound.name
        if bound.function is not None:
            return self.follow(bound.function, [receiver, *positional], keywords, node, spread is not None)
        if isinstance(receiver, Super):
            return self._super_method(receiver, name, positional, keywords, node, spread, texts)
        if isinstance(receiver, str) and spread is None:
            try:
                arguments = [self._text_argument(value) for value in positional]
                if not keywords:
                    result = text_method(receiver, name, arguments)
                    is_list = name in ("split", "rsplit", "splitlines")
                    return self.new("list", items=list(result)) if is_list else result
            except NotKnown:
                pass
            return self.unknown(node)
        if isinstance(receiver, FilePath):
            return self.path_method(receiver, name, positional, keywords, node)
        if isinstance(receiver, Ref):
            item = self.at(receiver)
            if item.kind == "parser":
                return self.parser_method(receiver, name, positional, keywords, node, spread)
            if item.cls == "file" and name == "read":
                return self.read_method(receiver, node) if not positional else self.unknown(node)
            if item.cls == "file":
                self.write(receiver, positional[0] if name == "write" and positional else None)
                return self.unknown(node)
            if item.kind in ("dict", "list", "set"):
                return self.container_method(receiver, name, positional, keywords, node, spread)
        if isinstance(receiver, Attributes) and name not in READ_ONLY:
            if name == "update" and spread is None:
                for other in positional:
                    self.update(receiver.id, other, self.text(node))
                for key, value in keywords.items():
                    self.put(receiver.id, key, value)
                return None
            self.lose(receiver.id, "*", self.text(node))
        elif not is_known(receiver):
            self.lose_all([receiver, *positional, *keywords.values()], self.text(node))
        return self.unknown(node, receiver, *positional, *keywords.values())

    def unfollowed(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        """A call of a function that is not followed."""
        return self._unfollowed(self.unknown(node), positional, keywords, node, None, None)

    def _unfollowed(
        self, function: Any, positional: list[Any], keywords: dict[str, Any], node: ast.AST, spread: Any,
        texts: dict[str, ast.AST] | None,
    ) -> Any:  # fmt: skip
        """A call of something that is not known: a method of an object, or anything else."""
        values = [*positional, *keywords.values()]
        path = function.path if isinstance(function, Unknown) else ""
        name = path if path else self.text(node.func) if isinstance(node, ast.Call) else ""
        call = self.record(
            name if path.startswith("callback_") or name.replace(".", "").replace("[]", "").isidentifier() else "",
            node,
            positional,
            keywords,
            spread,
            texts,
        )
        self.escape(values)
        refs = function.refs if isinstance(function, Unknown) else frozenset()
        owners = [id for id in refs if id in self.heap.objects and self.at(id).kind == "instance"]
        libraries = [id for id in owners if isinstance(self.at(id).cls, Library)]
        if path:
            self.happen(libraries, path, call)
            if path == ".train":
                self.trained(libraries, call)
        classes = [self.at(id).cls for id in libraries]
        if libraries and all(is_trusted(cls) for cls in classes):
            for value in values:
                if isinstance(value, Ref) or (isinstance(value, Unknown) and not value.path):
                    self.happen(refs_of([value]), f"{classes[0].last}{path}", call)
        else:
            if not (isinstance(function, Unknown) and function.is_library):
                self.lose_all([function, *values], self.text(node))
            for value in values:
                if isinstance(value, Ref) or (isinstance(value, Unknown) and not value.path):
                    self.happen(refs_of([value]), name or self.text(node), call)
        if path[1:] in RETURN_FIRST and libraries and all(is_trusted(cls) for cls in classes):
            return self._result(classes[0], node, positional[:1] or [keywords.get("model")])
        whole = [value for value in values if not (isinstance(value, Unknown) and value.path)]
        is_library = isinstance(function, Unknown) and function.is_library
        rest = "" if not path or path[1:] in RETURN_SELF else f"{path}()"[:200]
        return Unknown(self.text(node), refs | refs_of(whole), rest, is_library)
