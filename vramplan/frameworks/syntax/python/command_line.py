"""Values that a script takes from its command: argparse, HfArgumentParser, fire, typer, click, tyro."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vramplan.errors import ConfigError
from vramplan.frameworks.settings import ConfigValue
from vramplan.frameworks.syntax.config_files import read_mapping
from vramplan.frameworks.syntax.lookup import beside, from_here
from vramplan.frameworks.syntax.python import paths, trl_functions
from vramplan.frameworks.syntax.python.arithmetic import NotKnown, bounded
from vramplan.frameworks.syntax.python.classes import Classes
from vramplan.frameworks.syntax.python.machine import Function
from vramplan.frameworks.syntax.python.memory import MISSING
from vramplan.frameworks.syntax.python.values import Library, Object, Ref, Unknown, is_known, refs_of
from vramplan.frameworks.syntax.shell import UNKNOWN

HF_PARSERS = ("HfArgumentParser", "TrlParser", "H4ArgumentParser")
HF_METHODS = ("parse_args_into_dataclasses", "parse_args_and_config", "parse")
"""Methods of transformers', TRL's and the alignment handbook's parsers that read the command."""
FIELD_FUNCTIONS = ("field", "Field", "HfArg", "Option", "Argument")
"""Functions that hold the default of a field or parameter."""
TRUE_WORDS, FALSE_WORDS = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")


_ITEMS = re.compile(r"(?:typing\.)?(Optional\[)?(?:typing\.)?[Ll]ist\[(str|int|float)\](?(1)\])(?: *\| *None)?")
"""Annotations of lists."""


class Option(NamedTuple):
    """An option of argparse."""

    names: tuple[str, ...]
    default: Any
    kind: Any
    action: Any
    nargs: Any
    const: Any
    is_required: bool


class CommandLine(Classes):
    """Follows parsers of command lines."""

    # -- argparse ------------------------------------------------------------------------------------------------------

    def implicit_parser(self, node: ast.Attribute, function: Any) -> Any:
        """A parser that the script does not define, so that a part of a script can be read."""
        owner = node.value
        if not isinstance(owner, ast.Name) or self.lookup(owner.id) != Library(owner.id):
            return function
        if node.attr == "add_argument":
            self.assign(owner.id, self.new("parser", cls="argparse"))
            return self.value(node)
        return function

    def parse(self, function: Library, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        """Constructors of parsers and of fields; NotImplemented for other functions."""
        if function.last in ("ArgumentParser", "ArgParser"):
            changes = {"parents", "argument_default", "fromfile_prefix_chars", "default_config_files"} & keywords.keys()
            is_open = "" if function.last == "ArgumentParser" and not changes else self.text(node)
            return self.new("parser", cls="argparse", is_open=is_open)
        if function.last in HF_PARSERS:
            types = positional[0] if positional else keywords.get("dataclass_types", ())
            classes = [types] if isinstance(types, Ref | Library) and not self._is_list(types) else self.iterated(types)
            return self.new("parser", cls="hf", slots={"\0classes": tuple(classes)} if classes is not None else {},
                            is_open="" if classes is not None else self.text(node))  # fmt: skip
        if function.last in FIELD_FUNCTIONS and function.name.count(".") <= 2:
            slots = dict(keywords)
            if positional:
                slots["default"] = positional[0]
            if isinstance(slots.get("default"), Unknown) and slots["default"].text == "...":
                slots.pop("default")
            return self.new("dict", cls="field", slots=slots)
        return NotImplemented

    def _is_list(self, value: Any) -> bool:
        return isinstance(value, Ref) and self.at(value).kind in ("list", "set")

    def parser_method(
        self, ref: Ref, name: str, positional: list[Any], keywords: dict[str, Any], node: ast.AST, spread: Any
    ) -> Any:
        """A method of a parser."""
        item = self.at(ref)
        if name in ("add_argument_group", "add_mutually_exclusive_group"):
            return ref
        if name == "add_argument":
            self._add_argument(ref, positional, keywords, node, spread)
            return None
        if name == "set_defaults":
            if spread is not None:
                self.lose(ref.id, "*", self.text(node))
            for key, value in keywords.items():
                option = self.at(ref).slots.get(key)
                if isinstance(option, Option):
                    self.put(ref.id, key, option._replace(default=value, is_required=False))
                else:
                    self.put(ref.id, key, Option((), value, None, None, None, None, False))
            return None
        if name in ("parse_args", "parse_known_args", *HF_METHODS):
            words = positional[0] if positional else keywords.get("args")
            flags = self.flags if words is None else self._words(words)
            if item.cls == "argparse" and words is None:
                self.script.has_argparse = True
                self._note_required(item)
            if item.cls == "hf":
                if flags and words is None and name != "parse_args_into_dataclasses":
                    flags = self._with_file(flags, node)
                things = self._dataclasses(ref, flags, name, node)
                if words is None and self.is_alone:
                    self._mark_alone(things, node)
                has_rest = keywords.get("return_remaining_strings", False) is not False
                return (*things, Unknown(self.text(node))) if has_rest and type(things) is tuple else things
            namespace = self._namespace(ref, flags, node)
            return (namespace, Unknown(self.text(node))) if name == "parse_known_args" else namespace
        if name in ("print_help", "format_help", "error", "exit", "print_usage"):
            return self.unknown(node)
        if name == "parse_dict" and item.cls == "hf" and positional:
            pairs = self.pairs(positional[0])
            known = (
                None
                if pairs is None
                else {str(k): ConfigValue(self.plain(v, str(k)), self.place(node)) for k, v in pairs}
            )
            return self._dataclasses(ref, known, name, node)
        if name.startswith("parse_") and item.cls == "hf":
            file = positional[0] if positional else next(iter(keywords.values()), None)
            return self._dataclasses(ref, self._file_settings(file, node), name, node)
        if name != "get_default":
            self.lose(ref.id, "*", self.text(node))
        return self.unknown(node)

    def _mark_alone(self, things: Any, node: ast.AST) -> None:
        """Note for a library's arguments that the command, which is not known, sets them."""
        for value in things if type(things) is tuple else (things,):
            call = self.at(value).call if isinstance(value, Ref) else None
            if call is not None and not (call.subclass and "per_device_train_batch_size" in call.keywords):
                call.from_command = self.place(node)

    def _note_required(self, parser: Object) -> None:
        """Note flags that the command has to have, if the command is not known."""
        for option in parser.slots.values() if self.is_alone else ():
            if isinstance(option, Option) and option.is_required and option.names:
                self.script.required.append(f"--{option.names[0]}")

    def _with_file(self, flags: Mapping[str, ConfigValue], node: ast.AST) -> Mapping[str, ConfigValue] | None:
        """Flags, and the settings of the file that TrlParser takes behind ``--config``, or H4ArgumentParser first."""
        first = self.arguments[0] if self.arguments else ""
        named = flags["config"].value if "config" in flags else first if first.endswith((".yaml", ".yml")) else None
        if named is None:
            return flags
        settings = self._file_settings(named, node)
        return None if settings is None else settings | {key: flag for key, flag in flags.items() if key != "config"}

    def _file_settings(self, name: Any, node: ast.AST) -> dict[str, ConfigValue] | None:
        """The settings in a file whose name is known; None otherwise."""
        try:
            path = beside(paths.text_of(name), Path(self.where).parent)
            if path is None:
                self.missing(f"{self.place(node)} reads {paths.text_of(name)[:200]}, which is not here")
                return None
            self.script.read.setdefault(from_here(path), self.place(node))
            return read_mapping(path)
        except NotKnown:
            return None
        except ConfigError as error:
            self.missing(str(error))
            return None

    def missing(self, text: str) -> None:
        """Note why a file is not known."""
        if text not in self.script.missing and len(self.script.missing) < 20:
            self.script.missing.append(text)

    def _words(self, words: Any) -> Mapping[str, ConfigValue] | None:
        """A list of words as flags; None if they are not known."""
        from vramplan.frameworks.syntax.argv import pieces

        items = self.iterated(words)
        if items is None or not all(isinstance(item, str) for item in items):
            return None
        return {piece.name: ConfigValue(piece.value, self.where) for piece in pieces(items) if piece.name}

    def _add_argument(
        self, ref: Ref, positional: list[Any], keywords: dict[str, Any], node: ast.AST, spread: Any
    ) -> None:
        names = [value for value in positional if isinstance(value, str)]
        dest = keywords.get("dest")
        long = next((name for name in names if name.startswith("--")), names[0] if names else "")
        if dest is None:
            dest = long.lstrip("-").replace("-", "_")
        if not isinstance(dest, str) or not names or len(names) != len(positional) or spread is not None:
            self.lose(ref.id, "*", self.text(node))
            return
        action = keywords.get("action")
        action = action.last if isinstance(action, Library) else action
        if action in ("help", "version"):
            return
        no_default = {"store_true": False, "store_false": True}.get(action) if isinstance(action, str) else None
        stripped = tuple(name.lstrip("-").replace("-", "_") for name in names if name.startswith("-"))
        old = self.at(ref).slots.get(dest)
        default = keywords.get("default", no_default)
        if isinstance(old, Option) and old.names:  # a second option for the same value
            default = Unknown(dest)
        elif isinstance(old, Option) and "default" not in keywords:  # set_defaults before
            default = old.default
        required = keywords.get("required", False) is not False
        if not stripped:
            required = keywords.get("nargs") not in ("?", "*")
        option = Option(
            stripped, default, keywords.get("type"), action, keywords.get("nargs"), keywords.get("const"), required
        )
        self.put(ref.id, dest, option)

    def _namespace(self, ref: Ref, flags: Mapping[str, ConfigValue] | None, node: ast.AST) -> Ref:
        parser = self.at(ref)
        values: dict[Any, Any] = {}
        spellings = [name for option in parser.slots.values() if isinstance(option, Option) for name in option.names]
        for dest, option in parser.slots.items():
            if str(dest).startswith("\0"):
                continue
            if not isinstance(option, Option) or flags is None or parser.is_open:
                values[dest] = Unknown(str(dest))
                continue
            names = [name for name in flags if _matches(name, option.names, spellings)]
            values[dest] = self._option_value(dest, option, flags[names[-1]] if names else None, node)
        return self.new("instance", cls="namespace", slots=values, is_open=parser.is_open)

    def _option_value(self, dest: str, option: Option, flag: ConfigValue | None, node: ast.AST) -> Any:
        if flag is None:
            if option.is_required or (not option.names and option.nargs in ("?", "*")):
                return Unknown(dest)
            is_text = isinstance(option.default, str) and option.kind is not None
            return self._converted_by(option.kind, option.default, node) if is_text else option.default
        value = flag.value
        if option.action in ("store_true", "store_false"):
            return option.action == "store_true"
        if option.action == "BooleanOptionalAction":
            return value if isinstance(value, bool) else Unknown(dest)
        if option.action not in (None, "store") or isinstance(option.action, (Ref, Unknown)):
            return Unknown(dest)
        if value is True:  # the flag alone
            return option.const if option.nargs == "?" else Unknown(dest)
        words = [str(word) for word in value] if isinstance(value, list) else [str(value)]
        if any(UNKNOWN in word for word in words):
            return Unknown(dest)
        converted = [self._converted_by(option.kind, word, node) for word in words]
        if option.nargs in (None, "?"):
            return converted[0] if len(converted) == 1 else Unknown(dest)
        return self.new("list", items=converted)

    def _converted_by(self, kind: Any, text: Any, node: ast.AST) -> Any:
        """A word as argparse's ``type`` converts it."""
        if kind is None:
            return text
        if isinstance(kind, Function):
            return self.apply(kind, [text], {}, node)
        if isinstance(kind, Library) and kind.name in paths.CLASSES and isinstance(text, str):
            return paths.joined_paths([text])
        kinds: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool}
        if not isinstance(kind, Library) or kind.last not in kinds or not isinstance(text, (str, int, float)):
            return Unknown(str(text)[:60])
        try:
            return bounded(kinds[kind.last](text))
        except (ValueError, OverflowError, NotKnown):
            return Unknown(str(text)[:60])

    # -- dataclasses ---------------------------------------------------------------------------------------------------

    def _dataclasses(self, ref: Ref, flags: Mapping[str, ConfigValue] | None, method: str, node: ast.AST) -> Any:
        classes = self.at(ref).slots.get("\0classes", ())
        if not isinstance(classes, tuple) or self.at(ref).is_open:
            return self.unknown(node)
        rest = None if flags is None else dict(flags)
        things: list[Any] = []
        for cls in classes:
            if isinstance(cls, Ref) and self.at(cls).kind == "class" and self.ancestry(cls)[1] is None:
                things.append(self._dataclass(cls, rest, node))
            else:
                things.append(None)
        own = [
            self._taken(cls, rest, node) if thing is None else {} for cls, thing in zip(classes, things, strict=True)
        ]
        for number, cls in enumerate(classes):
            if things[number] is None:
                flags = None if rest is None else rest | own[number]
                things[number] = self._library_arguments(cls, flags, node)
        if method == "parse" and len(things) == 1:
            return things[0]
        return tuple(things)

    def _taken(self, cls: Any, flags: dict[str, ConfigValue] | None, node: ast.AST) -> dict[str, ConfigValue]:
        """The flags of the fields that a subclass of a library's class adds, which no other class takes."""
        if not flags or not isinstance(cls, Ref) or self.at(cls).kind != "class":
            return {}
        fields = self.fields(self.ancestry(cls)[0], node)
        return {name: flags.pop(name) for name in fields if name in flags}

    def _dataclass(self, cls: Ref, flags: dict[str, ConfigValue] | None, node: ast.AST) -> Ref:
        fields = self.fields(self.ancestry(cls)[0], node)
        kinds = self._annotations(cls)
        for name, default in fields.items():
            if flags is None:
                fields[name] = Unknown(name, refs_of([default]))
            elif name in flags:
                fields[name] = self.from_flag(name, kinds.get(name, ""), default, node, flags.pop(name))
        thing = self.new("instance", cls=cls, slots=fields)
        post = self._method_of(self.ancestry(cls)[0], "__post_init__")
        if post is not None:
            self.follow(post, [thing], {}, node)
        return thing

    def _annotations(self, cls: Ref) -> dict[str, str]:
        return {name: self.text(kind) for name, kind in self.annotations(cls).items()}

    def _library_arguments(self, cls: Any, flags: dict[str, ConfigValue] | None, node: ast.AST) -> Any:
        """TrainingArguments, or a subclass of them: the flags that no other class took."""
        own: list[Ref] = []
        library = cls if isinstance(cls, Library) else None
        if isinstance(cls, Ref) and self.at(cls).kind == "class":
            own, library, _ = self.ancestry(cls)
        if library is None:
            return self.unknown(node)
        keywords = self.fields(own, node)
        values = flags or {}
        keywords |= {name: self._from_word(value.value) for name, value in values.items()}
        spread = None if flags is not None else "a file"
        thing = self.new("instance", cls=library)
        self._base_init(thing, own, library, [], keywords, node, spread, None) if own else None
        if not own:
            call = self.record(library.name, node, [], keywords, spread)
            item = self.change(thing.id, "*")
            if library.name == trl_functions.MODEL_CONFIG and flags is not None and not self.is_alone:
                item.slots.update(trl_functions.DEFAULTS)
            item.slots.update(keywords)
            item.call = call
            self.adopt(thing, call)
        call = self.at(thing).call
        call.keywords |= values
        post = self._method_of(own, "__post_init__") if own else None
        if post is not None:
            self.follow(post, [thing], {}, node)
        return thing

    def _from_word(self, value: Any) -> Any:
        """A flag's word, or its words, as what they are."""
        if isinstance(value, list):
            return self.new("list", items=[_literal(word) for word in value])
        return _literal(value)

    # -- functions with flags ------------------------------------------------------------------------------------------

    def from_flag(self, key: str, kind: Any, default: Any, node: ast.AST, flag: ConfigValue | None = None) -> Any:
        """The value of a command's flag, converted to a type or an annotation."""
        value = (flag or self.flags[key]).value
        if isinstance(value, bool) or value is None:
            return value
        if UNKNOWN in str(value):
            return Unknown(key)
        if isinstance(kind, str) and (inner := _ITEMS.fullmatch(kind)):
            words = value if isinstance(value, list) else [value]
            items = [self._converted_by(Library(f"builtins.{inner[2]}"), str(word), node) for word in words]
            return self.new("list", items=items)
        if isinstance(value, list):
            return Unknown(key)
        if isinstance(kind, Library):
            return self._converted_by(kind, str(value), node)
        name = str(kind).replace("Optional[", "").rstrip("]").partition("|")[0].strip() if isinstance(kind, str) else ""
        if name == "bool" or (not name and isinstance(default, bool)):
            word = str(value).lower()
            return True if word in TRUE_WORDS else False if word in FALSE_WORDS else Unknown(key)
        if name in ("int", "float", "str"):
            return self._converted_by(Library(f"builtins.{name}"), str(value), node)
        if not name and type(default) in (int, float, str):
            return self._converted_by(Library(f"builtins.{type(default).__name__}"), str(value), node)
        return Unknown(key)

    def run_with_flags(self, target: Any, node: ast.AST) -> Any:
        """A function of the script that a library calls with the command's flags."""
        if isinstance(target, Ref) and self.at(target).kind == "class":
            return self._dataclass(target, dict(self.flags), node)
        if not isinstance(target, Function):
            return self.unknown(node, target)
        parameters = target.node.args
        arguments = [*parameters.posonlyargs, *parameters.args]
        defaults = dict(
            zip([a.arg for a in arguments[len(arguments) - len(target.defaults) :]], target.defaults, strict=True)
        )
        pairs = zip([a.arg for a in parameters.kwonlyargs], target.keyword_defaults, strict=True)
        defaults |= {name: value for name, value in pairs if value is not MISSING}
        keywords: dict[str, Any] = {}
        for argument in (*arguments, *parameters.kwonlyargs):
            default = self._default(defaults.get(argument.arg, Unknown(argument.arg)), argument.arg, node)
            if argument.arg in self.flags:
                kind = self.text(argument.annotation) if argument.annotation is not None else ""
                default = self.from_flag(argument.arg, kind, default, node)
            keywords[argument.arg] = default
        return self.follow(target, [], keywords, node, parameters.kwarg is not None)


def _matches(flag: str, names: tuple[str, ...], spellings: list[str]) -> bool:
    """Whether a flag is an option's, or the only one that begins like it."""
    if flag in spellings:
        return flag in names
    longer = {name for name in spellings if name.startswith(flag) and len(flag) > 1}
    return len(longer) == 1 and bool(longer & set(names))


def _literal(value: Any) -> Any:
    """A flag's word as the number or truth value that it is."""
    if not isinstance(value, str):
        return value if is_known(value) else Unknown(str(value)[:60])
    if UNKNOWN in value:
        return Unknown(value.replace(UNKNOWN, "")[:60])
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return bounded(kind(value)) if len(value) < 40 else value
        except (ValueError, NotKnown):
            continue
    return value
