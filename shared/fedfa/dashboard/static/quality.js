// The metric over time and over versions; how fast versions come; how stale updates are.

import { around, card, level } from "./charts.js";
import { h, replace } from "./dom.js";
import { count, duration, metric } from "./format.js";

export function qualitySection() {
  let [view, chosen] = [null, null];
  const choice = h("select", { id: "metric", onchange: () => { chosen = choice.value; show(); } });
  const label = h("label", { class: "choice" }, "Metric ", choice);
  const values = () => view?.metrics.values[chosen] ?? [];
  const target = () => (view?.target && view.target.metric === chosen ? view.target.value : null);
  const common = {
    height: 240,
    series: [{ colorName: "blue", fill: true }],
    yRange: () => around(values(), target()),
    yText: (value) => String(Number(value.toPrecision(4))),
    ySize: 54,
    draw: (plot) => { if (target() !== null) level(plot, target(), `target ${Number(target().toPrecision(4))}`, "red"); },
    readout: (at, isLast) => `${isLast ? "last: " : ""}${metric(values()[at])} at version ${count(view.metrics.version[at])}, ${duration(view.metrics.seconds[at])}`,
    summary: () => `From ${metric(values()[0])} to ${metric(values().at(-1))} over ${values().length} evaluations${target() === null ? "" : `, target ${metric(target())}`}`,
  };
  const overTime = card("over the time since submission", { ...common, kind: "seconds" });
  const overVersions = card("over versions", { ...common, kind: "number" });
  const element = h("section", { "aria-labelledby": "quality" },
    h("div", { class: "bar-head" }, h("h2", { id: "quality" }, "Quality"), label),
    h("div", { class: "pair" }, overTime.element, overVersions.element));

  function show() {
    overTime.update([view.metrics.seconds, values()]);
    overVersions.update([view.metrics.version, values()]);
  }

  function update(now) {
    view = now;
    const names = Object.keys(now.metrics.values);
    if (names.join() !== [...choice.options].map((option) => option.value).join()) {
      replace(choice, names.map((name) => h("option", { value: name }, name)));
    }
    if (!names.includes(chosen)) chosen = now.metric && names.includes(now.metric) ? now.metric : names[0] ?? null;
    choice.value = chosen ?? "";
    label.hidden = names.length < 2;
    show();
  }

  return { element, update, destroy: () => { overTime.destroy(); overVersions.destroy(); } };
}

export function speedSection() {
  let view = null;
  const rates = () => view?.versions.per_minute ?? { seconds: [], rate: [] };
  const speed = card("versions per minute", {
    kind: "seconds",
    series: [{ colorName: "green", fill: true }],
    yRange: (_, __, high) => [0, Math.max(high ?? 0, 0.1) * 1.1],
    yText: (value) => String(Number(value.toPrecision(3))),
    readout: (at, isLast) => `${isLast ? "last: " : ""}${Number(rates().rate[at].toPrecision(3))} a minute at ${duration(rates().seconds[at])}`,
    summary: () => `Between ${Math.min(...rates().rate).toFixed(1)} and ${Math.max(...rates().rate).toFixed(1)} a minute`,
  });
  const bins = () => view?.staleness.counts ?? [];
  const staleness = card("staleness of merged updates, in versions", {
    kind: "number",
    bars: true,
    series: [{ colorName: "blue" }],
    yRange: (_, __, high) => [0, (high || 1) * 1.1],
    yText: (value) => (Number.isInteger(value) ? count(value) : ""),
    ySize: 54,
    readout: (at, isLast) => (isLast
      ? `mean ${view.staleness.mean?.toFixed(2) ?? "-"}, at most ${view.staleness.max}`
      : `${count(bins()[at])} updates with ${binName(at, view.staleness.width)}`),
    summary: () => `Mean ${view.staleness.mean?.toFixed(1)}, at most ${view.staleness.max} versions`,
  });
  const element = h("section", { "aria-labelledby": "speed" }, h("h2", { id: "speed" }, "Speed and staleness"),
    h("div", { class: "pair" }, speed.element, staleness.element));

  function update(now) {
    view = now;
    speed.update([rates().seconds, rates().rate]);
    const width = now.staleness.width;
    staleness.update([bins().map((_, at) => at * width + (width - 1) / 2), bins()]);
  }

  return { element, update, destroy: () => { speed.destroy(); staleness.destroy(); } };
}

function binName(at, width) {
  return width === 1 ? `staleness ${at}` : `staleness ${at * width} to ${(at + 1) * width - 1}`;
}
