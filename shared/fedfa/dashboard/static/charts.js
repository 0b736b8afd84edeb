// Charts on uPlot: colours from the theme, a readout that the mouse and the arrow keys move.

import { h, setText } from "./dom.js";
import { tick } from "./format.js";

const SECONDS = [0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600,
  43200, 86400, 172800, 432800, 864000];
const FONT = "12px system-ui, sans-serif";
const charts = new Set(); // to be drawn anew when the theme changes

window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts) chart.redraw();
});

export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function axes(kind, yText = (value) => value, ySize = 46) {
  const common = () => ({
    stroke: color("muted"), font: FONT,
    grid: { stroke: color("grid"), width: 1 }, ticks: { stroke: color("grid"), width: 1, size: 4 },
  });
  const x = kind === "seconds"
    ? { incrs: SECONDS, values: (_, splits) => splits.map(tick) }
    : { incrs: [1, 2, 5].flatMap((m) => [...Array(8).keys()].map((e) => m * 10 ** e)).sort((a, b) => a - b),
        values: (_, splits) => splits.map((split) => split.toLocaleString("en")) };
  return [
    { ...common(), ...x, size: 30, gap: 4, space: 64 },
    { ...common(), size: ySize, gap: 4, values: (_, splits) => splits.map((value) => (value === null ? "" : yText(value))) },
  ];
}

// A chart that fills its place, follows its size and the theme, and keeps a zoom over new data.
// options(width, height) gives uPlot's, without size.
export class Chart {
  constructor(host, { height, options, data }) {
    Object.assign(this, { host, height, options, data, plot: null, isZoomed: false });
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(host);
    charts.add(this);
  }

  resize() {
    const width = Math.floor(this.host.clientWidth);
    if (!width) return;
    if (!this.plot) this.redraw();
    else if (width !== this.plot.width || this.height !== this.plot.height) {
      this.plot.setSize({ width, height: this.height });
    }
  }

  redraw() {
    const width = Math.floor(this.host.clientWidth);
    if (!width || !this.data) return;
    this.plot?.destroy();
    this.isZoomed = false;
    const options = this.options();
    const hooks = { ...options.hooks };
    hooks.setSelect = [(plot) => { this.isZoomed = plot.select.width > 0; }];
    this.plot = new uPlot({ legend: { show: false }, ...options, width, height: this.height, hooks }, this.data, this.host);
    this.plot.over.addEventListener("dblclick", () => { this.isZoomed = false; });
  }

  setData(data) {
    this.data = data;
    if (this.plot) this.plot.setData(data, !this.isZoomed);
    else this.redraw();
  }

  setHeight(height) {
    this.height = height;
    this.resize();
  }

  destroy() {
    charts.delete(this);
    this.observer.disconnect();
    this.plot?.destroy();
  }
}

// A titled chart in a card, with a readout: what is under the mouse, or where the arrow keys are.
// readout(at): the text for the point of that index; summary(): the whole in a sentence.
export function card(title, { kind, height = 220, note = "", series, yRange, yText, ySize, draw, readout, summary, bars }) {
  const place = h("div", { class: "plot" });
  const output = h("output", { class: "readout" });
  const figure = h("figure", {
    class: "chart", tabindex: "0", role: "group", "aria-label": title, onkeydown: onKey, onblur: () => show(null),
  }, h("figcaption", {}, h("span", { class: "caption" }, title), output), place, note && h("p", { class: "muted note" }, note));
  const spoken = h("p", { class: "visually-hidden", "aria-live": "polite" });
  figure.append(spoken);
  let at = null;

  const chart = new Chart(place, {
    height,
    data: null,
    options: () => ({
      scales: { x: { time: false, range: bars ? (_, low, high) => [low - 0.5, high + 0.5] : undefined }, y: { range: yRange } },
      axes: axes(kind, yText, ySize),
      series: [{}, ...series.map((one) => lineOf(one, bars))],
      cursor: { y: false, points: { size: 7 }, drag: { setScale: true, x: true, y: false } },
      hooks: { setCursor: [(plot) => show(plot.cursor.idx)], draw: draw ? [draw] : [] },
    }),
  });

  function show(index) {
    at = index;
    setText(output, chart.data?.[0].length ? readout(index ?? chart.data[0].length - 1, index === null) : "no data yet");
  }

  function onKey(event) {
    const last = (chart.data?.[0].length ?? 0) - 1;
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity, PageUp: 10, PageDown: -10 };
    if (last < 0 || !(event.key in steps)) return;
    event.preventDefault();
    const index = Math.max(0, Math.min(last, (at ?? last) + steps[event.key]));
    const plot = chart.plot;
    const left = plot.valToPos(chart.data[0][index], "x");
    plot.setCursor({ left, top: plot.over.clientHeight / 2 });
    show(index);
    setText(spoken, output.textContent);
  }

  function update(data) {
    chart.setData(data);
    if (!figure.matches(":hover, :focus")) show(null);
    figure.setAttribute("aria-label", `${title}. ${data[0].length ? summary() : "No data yet"}. Arrow keys move along it.`);
  }

  return { element: figure, chart, update, redraw: () => chart.redraw(), destroy: () => chart.destroy() };
}

function lineOf({ colorName, points, fill, width = 2 }, bars) {
  const line = { stroke: () => color(colorName), width, points: { show: points ?? false, size: 5, fill: () => color(colorName) }, spanGaps: true };
  if (fill) line.fill = () => color(`${colorName}-soft`);
  if (bars) Object.assign(line, { paths: uPlot.paths.bars({ size: [0.86, 60] }), points: { show: false }, width: 0, fill: () => color(colorName) });
  return line;
}

// Draws a dashed level with its name, as a target is shown.
export function level(plot, value, text, colorName) {
  const { ctx, bbox } = plot;
  const y = Math.round(plot.valToPos(value, "y", true));
  if (y < bbox.top || y > bbox.top + bbox.height) return;
  const ratio = window.devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = color(colorName);
  ctx.lineWidth = 1.5 * ratio;
  ctx.setLineDash([6 * ratio, 4 * ratio]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.font = `${12 * ratio}px system-ui, sans-serif`;
  const below = y - bbox.top < 22 * ratio;
  ctx.textAlign = "left";
  ctx.textBaseline = below ? "top" : "bottom";
  ctx.fillText(text, bbox.left + 6 * ratio, y + (below ? 4 : -4) * ratio);
  ctx.restore();
}

// Room for the data and a level, with a little air; never flat.
export function around(values, ...levels) {
  const all = [...values.filter((value) => value !== null), ...levels.filter((value) => value !== null && value !== undefined)];
  if (!all.length) return [0, 1];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const air = (high - low || Math.abs(high) || 1) * 0.06;
  return [low >= 0 && low < high * 0.5 ? Math.max(0, low - air) : low - air, high + air];
}

// A small curve without axes.
export function sparkline(host) {
  let target = null;
  const none = { show: false };
  const chart = new Chart(host, {
    height: 36,
    data: null,
    options: () => ({
      padding: [4, 2, 4, 2],
      scales: { x: { time: false }, y: { range: () => around(chart.data[1], target) } },
      axes: [none, none],
      cursor: none,
      series: [{}, lineOf({ colorName: "blue", fill: true }, false)],
      hooks: { draw: [(plot) => { if (target !== null) level(plot, target, "", "red"); }] },
    }),
  });
  return {
    update(values, goal) { target = goal; chart.setData([values.map((_, at) => at), values]); },
    destroy: () => chart.destroy(),
  };
}
