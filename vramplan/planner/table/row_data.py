"""Rows as JSON values: for the parts of a table, and for rows that are kept between runs."""

from __future__ import annotations

from typing import Any

from vramplan.planner.table.request import TableRequest
from vramplan.planner.table.row import Cell, Row


def to_data(row: Row) -> dict[str, Any]:
    """A row as JSON values. Cells are [GPU, value, whether it fits, number of the reason why it cannot run]."""
    reasons = {reason: number for number, reason in enumerate(dict.fromkeys(cell.reason for cell in row.cells))}
    return {
        "cells": [[cell.card, cell.value, cell.fits, reasons[cell.reason]] for cell in row.cells],
        "reasons": list(reasons),
        "assumptions": [list(texts) for texts in row.said],
    }


def from_data(data: Any, request: TableRequest) -> Row:
    """The row of a table that was written as `data`.

    Raises:
        ValueError: if this is no row of the table.
    """
    names = {card.name: card.name for card in request.cards}
    if request.show == "card":
        names[""] = ""
    try:
        cells = tuple(
            Cell(names[card], _value(value), _exactly(bool, fits), _exactly(str, data["reasons"][_value(reason)]))
            for card, value, fits, reason in data["cells"]
        )
        said = tuple(tuple(_exactly(str, text) for text in texts) for texts in data["assumptions"])
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError("not a row") from error
    if len(cells) != 1 if request.show == "card" else [cell.card for cell in cells] != list(names):
        raise ValueError("not these GPUs")
    return Row(cells, said)


def _value(number: Any) -> Any:
    if number is not None and (type(number) is not int or number < 0):
        raise ValueError("not a count")
    return number


def _exactly(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"not of type {kind.__name__}")
    return value
