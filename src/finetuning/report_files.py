"""Writer of report_SPLIT.json, errors_SPLIT.tsv and report_SPLIT.html, a page without outside references."""

import base64
import itertools
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from model_utils.files import write_json, write_text
from model_utils.schema import Config
from model_utils.yaml_files import write_yaml
from src.data.feature_files import RecordSet
from src.tasks.evaluation_report import BINS, Confusion, MarkedText, calibration_bins
from src.tasks.prediction_table import table_text
from src.tasks.spec import EvaluationResult
from src.training.run_log import CURVES_FILE

SHOWN_ERRORS = 50
SHOWN_CLASSES = 20  # of a confusion matrix; all others share a row and a column
CONTEXT = 1000  # characters of a text that are shown before its first mark and behind its last one
STYLE_FILE = Path(__file__).with_name("report_page.css")
PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
{style}</style>
<h1>{title}</h1>
{body}
</html>
"""


def write_report(
    folder: Path,
    split: str,
    result: EvaluationResult,
    baselines: Mapping[str, float],
    records: RecordSet,
    checkpoint: Path,
    config: Config,
) -> None:
    """Write the report of a result, which has one, as JSON, TSV and HTML into a folder.

    Args:
        records: rows that were evaluated, whose lengths are reported.
        checkpoint: weights that were evaluated; training curves beside it are shown.
    """
    assert result.report
    report = result.report()
    tokens = _token_counts(records)
    write_json(folder / f"report_{split}.json", report.to_json() | {"tokens": tokens})
    write_text(folder / f"errors_{split}.tsv", table_text(report.errors))
    metrics = [(name, value, baselines.get(name, "")) for name, value in result.metrics.items()]
    warnings = "".join(f"<p>{escape(warning)}</p>" for warning in result.warnings)
    sections = {"Metrics 指标": _table(("metric 指标", "value 数值", "baseline 基线"), metrics) + warnings}
    if report.classes:
        names = ("class 类别", "precision 精确率", "recall 召回率", "F1", "support 样本数")
        keys = ("precision", "recall", "f1", "support")
        rows = [(label, *(metrics_of_class[key] for key in keys)) for label, metrics_of_class in report.classes.items()]
        sections["Classes 类别"] = _table(names, rows)
    if report.confusion:
        sections["Confusion matrix 混淆矩阵"] = _matrix(report.confusion)
    bins = calibration_bins(report.confidence, report.is_correct)
    sections["Calibration 校准"] = _table(
        ("probability 概率", "predictions 预测数", "mean probability 平均概率", "accuracy 准确率"),
        [(f"{start:.1f} – {start + 1 / BINS:.1f}", *values) for start, *values in bins],
    )
    sections["Tokens of a row 每行词元数"] = _table(
        ("mean 平均", "longest 最长", "limit 上限", "rows at the limit 达到上限的行数"), [list(tokens.values())]
    )
    curves = checkpoint.with_name(CURVES_FILE)
    if curves.exists():
        image = base64.b64encode(curves.read_bytes()).decode()
        sections["Training 训练"] = f'<img alt="{CURVES_FILE}" src="data:image/png;base64,{image}">'
    sections["Errors 错误"] = _errors({**report.errors, **report.passages}, f"errors_{split}.tsv")
    sections["Command 命令"] = f"<pre>{escape(shlex.join(sys.orig_argv))}</pre>"
    sections["Checkpoint 检查点"] = f"<pre>{escape(str(checkpoint))}</pre>"
    sections["Configuration 配置"] = f"<pre>{escape(write_yaml(config.to_dict()))}</pre>"
    body = "\n".join(f"<h2>{heading}</h2>\n{content}" for heading, content in sections.items())
    title = f"Evaluation report 评估报告: {escape(split)}"
    page = PAGE.format(title=title, style=STYLE_FILE.read_text("utf-8"), body=body)
    page = page.encode("utf-8", "backslashreplace").decode()  # bytes of a command or path may be no UTF-8
    write_text(folder / f"report_{split}.html", page)


def _token_counts(records: RecordSet) -> dict[str, float]:
    """Return figures about the tokens of the rows; those at the limit may be cut texts, or windows."""
    limit = max(column.width for column in records.columns.values() if column.per_token)
    lengths = records.lengths
    rows_at_limit = int((lengths == limit).sum())
    return {"mean": lengths.mean().item(), "max": lengths.max().item(), "limit": limit, "rows_at_limit": rows_at_limit}


def _table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    return f"<table>{_row(names, 'th')}{''.join(map(_row, rows))}</table>"


def _row(values: Iterable[Any], tag: str = "td") -> str:
    cells = []
    for value in values:
        is_number = isinstance(value, int | float | np.number)
        is_float = isinstance(value, float | np.floating)
        text = f"{value:.4f}" if is_float else _marked(MarkedText(str(value))) or "–"
        cells.append(f'<{tag} class="number">{text}' if is_number else f'<{tag} dir="auto">{text}')
    return f"<tr>{''.join(cells)}</tr>\n"


def _marked(text: MarkedText) -> str:
    """Return a text with its marks, without what is far from any."""
    first = max(0, min((mark.start for mark in text.marks), default=0) - CONTEXT)
    end = min(len(text.text), max((mark.end for mark in text.marks), default=0) + CONTEXT)
    bounds = {first, end}.union(*((mark.start, mark.end) for mark in text.marks))
    pieces = ["… "] if first else []
    for piece_start, piece_end in itertools.pairwise(sorted(bounds)):
        piece = escape(text.text[piece_start:piece_end])
        marks = [mark for mark in text.marks if mark.start <= piece_start and piece_end <= mark.end]
        kinds = {mark.kind for mark in marks}
        if kinds:
            kind = kinds.pop() if len(kinds) == 1 else "both"
            ended = [mark.label for mark in marks if mark.label and mark.end == piece_end]
            labels = "".join(f"<small>{escape(label)}</small>" for label in ended)
            piece = f'<mark class="{kind}">{piece}{labels}</mark>'
        pieces.append(piece)
    return "".join(pieces) + (" …" if end < len(text.text) else "")


def _errors(columns: Mapping[str, Sequence[Any]], file: str) -> str:
    """Return the first errors; marked texts have rows of their own below the other columns."""
    count = len(next(iter(columns.values())))
    shown = min(count, SHOWN_ERRORS)
    html = (
        f"<p>{shown} of {count:,} errors, the largest probability first; all are in {file}.<br>"
        f"共 {count:,} 个错误,此处按概率从大到小列出 {shown} 个,全部见 {file}。</p>"
    )
    if not shown:
        return html
    marked = [name for name, values in columns.items() if isinstance(values[0], MarkedText)]
    plain = [name for name in columns if name not in marked]
    if marked:
        html += '<p><mark class="gold">gold 标准答案</mark> <mark class="predicted">predicted 预测</mark> '
        html += '<mark class="both">both 两者</mark></p>'
    html += f"<table>{_row(plain, 'th')}"
    for row in range(shown):
        html += _row(columns[name][row] for name in plain)
        for name in marked:
            html += f'<tr><td colspan="{len(plain)}"><b>{name}</b> <bdi>{_marked(columns[name][row])}</bdi></tr>\n'
    return f"{html}</table>"


def _matrix(confusion: Confusion) -> str:
    """Return a table of gold labels and predictions, of the classes with most rows and of all others together."""
    labels, gold, predictions = confusion
    counts = np.bincount(np.concatenate([gold, predictions]), minlength=len(labels))
    shown = np.sort(np.argsort(-counts, kind="stable")[:SHOWN_CLASSES])
    names = [labels[label_id] for label_id in shown]
    if len(labels) > SHOWN_CLASSES:
        names.append("other 其他")
    cell_indices = np.full(len(labels), SHOWN_CLASSES)
    cell_indices[shown] = np.arange(len(shown))
    cells = np.bincount(cell_indices[gold] * len(names) + cell_indices[predictions], minlength=len(names) ** 2)
    matrix = cells.reshape(len(names), len(names))
    shares = matrix / np.maximum(1, matrix.sum(1, keepdims=True))
    html = "<p>Rows are gold labels, columns are predictions; a dark cell has a large share of its row.<br>"
    html += '行为标准答案,列为预测;颜色越深,占该行的比例越大。</p><table class="matrix"><tr><th>'
    html += "".join(f"<th><div>{escape(name)}</div>" for name in names)
    for row, name in enumerate(names):
        html += f"</tr>\n<tr><th>{escape(name)}"
        for column, count in enumerate(matrix[row].tolist()):
            colour = "13 148 136" if row == column else "220 38 38"
            html += f'<td style="background:rgb({colour} / {60 * shares[row, column] ** 0.5:.0f}%)">{count or ""}'
    return f"{html}</table>"
