"""One HTML page with everything inside: numbers, figures as data URLs, log extracts, the spec."""

import base64
import time
from collections import Counter
from collections.abc import Iterable
from html import escape

import yaml

from fedfa import __version__
from fedfa.report.figures import Drawn
from fedfa.rows import History
from fedfa.summary import Measured, Summary, summarize

MOST_REASONS = 10

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2937; background: #f9fafb;
       max-width: 64rem; margin: 2.5rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
.status { display: inline-block; padding: .1rem .6rem; border-radius: 1rem; font-size: .85rem;
          vertical-align: middle; color: white; background: #6b7280; }
.finished { background: #009e73; } .failed { background: #d55e00; }
.running { background: #0072b2; }
.lead, figcaption, footer { color: #6b7280; }
.numbers { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr));
           gap: .75rem; margin: 1.5rem 0; padding: 0; }
.numbers div { background: white; border: 1px solid #e5e7eb; border-radius: .5rem;
               padding: .6rem .9rem; }
.numbers dt { font-size: .8rem; color: #6b7280; }
.numbers dd { margin: 0; font-size: 1.3rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.numbers small { display: block; font-size: .8rem; font-weight: 400; color: #6b7280; }
figure { margin: 0; } figcaption, footer { font-size: .9rem; }
figure img { width: 100%; background: white; border: 1px solid #e5e7eb; border-radius: .5rem;
             padding: .75rem; box-sizing: border-box; }
table { border-collapse: collapse; background: white; }
td, th { border: 1px solid #e5e7eb; padding: .3rem .7rem; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: white; border: 1px solid #e5e7eb; border-radius: .5rem; padding: 1rem;
      overflow-x: auto; font-size: .85rem; }
footer { margin-top: 3rem; border-top: 1px solid #e5e7eb; padding-top: .75rem; }
"""


def page(history: History, figures: Iterable[Drawn]) -> str:
    """The whole page. Whatever comes from a federation is escaped."""
    summary = summarize(history, now=history.at)
    name = escape(summary.federation)
    created = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(history.submission.created_at))
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{name} - FedFa report</title>",
            f"<style>{STYLE}</style></head><body>",
            f'<h1>{name} <span class="status {summary.status}">{summary.status}</span></h1>',
            f'<p class="lead">{escape(summary.reason)}</p>',
            _numbers(summary),
            *map(_figure, figures),
            _reasons(history),
            "<h2>Spec</h2>",
            f"<pre>{escape(_spec(history))}</pre>",
            f"<footer>Submitted {created}, uid {history.submission.uid}. Written by fedfa "
            f"{escape(__version__)} from the federation's log of manifests.</footer>",
            "</body></html>",
        ]
    )


def _numbers(summary: Summary) -> str:
    pairs = [
        *_quality(summary),
        ("versions", str(summary.version), ""),
        ("merged updates", str(summary.merged), f"{summary.updates_per_second:.2f} per second"),
        ("refused", str(summary.rejected + summary.abandoned), _refused(summary)),
        ("wall time", _seconds(summary.seconds), "from submission to the last commit"),
        ("concurrency", str(summary.concurrency), "Mc, jobs open at any time"),
    ]
    if summary.staleness_mean is not None:
        shown = f"at most {summary.staleness_max} versions"
        pairs.append(("mean staleness", f"{summary.staleness_mean:.1f}", shown))
    cards = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for label, value, note in pairs
    )
    return f'<dl class="numbers">{cards}</dl>'


def _quality(summary: Summary) -> list[tuple[str, str, str]]:
    if summary.metric is None or summary.latest is None or summary.best is None:
        return []
    target = "" if summary.target is None else f", target {summary.target:g}"
    return [
        (f"last {summary.metric}", f"{summary.latest.value:.4f}", _where(summary.latest)),
        (f"best {summary.metric}", f"{summary.best.value:.4f}", _where(summary.best) + target),
    ]


def _where(measured: Measured) -> str:
    return f"version {measured.version}, {_seconds(measured.seconds)}"


def _refused(summary: Summary) -> str:
    return f"{summary.rejected} rejected, {summary.abandoned} abandoned"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.1f} min"


def _figure(figure: Drawn) -> str:
    data = base64.b64encode(figure.png).decode()
    title, caption = escape(figure.title), escape(figure.caption)
    return (
        f'<h2>{title}</h2><figure><img alt="{title}: {caption}" src="data:image/png;base64,{data}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _reasons(history: History) -> str:
    """Why updates were refused, most frequent first; nothing where none was."""
    refused = Counter(
        (row.outcome, row.reason or "")
        for row in history.rows
        if row.outcome in ("rejected", "abandoned")
    )
    if not refused:
        return ""
    rows = "".join(
        f'<tr><td class="number">{count}</td><td>{outcome}</td><td>{escape(reason)}</td></tr>'
        for (outcome, reason), count in refused.most_common(MOST_REASONS)
    )
    head = "<tr><th>jobs</th><th>outcome</th><th>reason</th></tr>"
    return f"<h2>Refused</h2><table>{head}{rows}</table>"


def _spec(history: History) -> str:
    fields = history.submission.spec.model_dump(mode="json", exclude_none=True)
    return yaml.safe_dump(fields, sort_keys=False)
