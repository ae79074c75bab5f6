"""All columns of `Predictions` as a table: CSV, JSON, Parquet, or a DataFrame of pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

from ...errors import MissingExtra
from ...words import write_csv, write_json
from .asked import Asked, as_utf8

if TYPE_CHECKING:
    from ..predictions import Predictions

TEXT = ("label", "runner_up", "zero_shot_label", "true_label")


def csv_rows(predictions: Predictions, file: TextIO, asked: Asked) -> int:
    """A header and a row per image."""
    write_csv(file, list(predictions.columns), (row for _, row in asked.rows(predictions)), asked.raw_csv)
    return asked.count(predictions)


def json_rows(predictions: Predictions, file: TextIO, asked: Asked) -> int:
    """An array of objects, one per image."""
    write_json(file, (row for _, row in asked.rows(predictions)))
    return asked.count(predictions)


def check_parquet(path: Any) -> None:
    """Raise MissingExtra if pyarrow is not there."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"cannot write {path}: pyarrow is not installed. "
            'Install it with: pip install "kedge[parquet]"; or write .csv or .json.'
        ) from error


def parquet_rows(predictions: Predictions, file: TextIO, asked: Asked) -> int:
    """A table with the types of the columns; `file` must have a binary buffer below."""
    import pyarrow
    import pyarrow.parquet

    columns, types = _named(predictions), {"review_rank": pyarrow.int64(), **dict.fromkeys(TEXT, pyarrow.string())}
    table = pyarrow.table({name: pyarrow.array(column, types.get(name)) for name, column in columns.items()})
    if asked.all_rows:
        skipped = pyarrow.array(map(as_utf8, predictions.skipped), table.schema.field("image").type)
        table = pyarrow.concat_tables([table, pyarrow.table({"image": skipped})], promote_options="default")
    pyarrow.parquet.write_table(table, file.buffer)
    return len(table)


def data_frame(predictions: Predictions) -> Any:
    """A pandas DataFrame: text as `string`, review_rank as `Int64` (both may be missing), numbers as they are."""
    try:
        import pandas
    except ImportError as error:
        raise MissingExtra(
            'to_pandas needs pandas, which is not installed. Install it with: pip install "kedge[pandas]"'
        ) from error
    columns, types = _named(predictions), {"review_rank": "Int64", **dict.fromkeys(TEXT, "string")}
    if predictions.paths is not None:
        types["image"] = "string"
    return pandas.DataFrame(
        {name: pandas.Series(column, dtype=types.get(name), copy=True) for name, column in columns.items()}
    )


def _named(predictions: Predictions) -> dict[str, Any]:
    """The columns, with names of images that are UTF-8."""
    images = [as_utf8(name) if isinstance(name, str) else name for name in predictions.columns["image"]]
    return {**predictions.columns, "image": images}
