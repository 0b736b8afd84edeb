// The Mc slots over time: who trained what, when; what waited; how each job ended.

import { axes, Chart, color } from "./charts.js";
import { fetchOlder, openManifest } from "./decisions.js";
import { h, pill, reason, replace, setText, table } from "./dom.js";
import { count, duration } from "./format.js";

const JOBS_ACROSS = 10; // of one slot, in the first view
const STAGES = { owed: "to be handed out", queued: "waits in the queue", claimed: "with a trainer", delivered: "delivered", given_up: "given up" };
const OUTCOMES = { merged: "blue", rejected: "red", abandoned: "orange" };

export function timelineSection(id, rows) {
  let [view, window_, follows, chosen] = [null, null, true, null];
  const place = h("div", { class: "plot" });
  const details = h("p", { class: "details", "aria-live": "polite" }, hint());
  const open = h("button", { type: "button", hidden: true, onclick: () => chosen && openManifest(id, chosen.n) }, "Open its manifest");
  const older = h("button", { type: "button", onclick: () => move(-0.8) }, "Older");
  const newer = h("button", { type: "button", onclick: () => move(0.8) }, "Newer");
  const latest = h("button", { type: "button", onclick: () => { follows = true; show(); } }, "Latest");
  const figure = h("figure", {
    class: "chart", tabindex: "0", role: "group", onkeydown: onKey,
    "aria-label": "Timeline of the slots. Left and right go through the jobs of a slot, up and down through the slots, Enter opens the manifest.",
  }, h("figcaption", {}, h("span", { class: "caption" }, "slots over the time since submission"), legend()), h("div", { class: "tall" }, place));
  const jobs = h("div");
  const summary = h("summary", {}, "Open jobs");
  const openJobs = h("details", {}, summary, jobs);
  const element = h("section", { "aria-labelledby": "slots" }, h("h2", { id: "slots" }, "Slots"), figure,
    h("div", { class: "buttons left" }, older, newer, latest), h("div", { class: "chosen" }, details, open),
    openJobs);
  const chart = new Chart(place, {
    height: 200,
    data: null,
    options: () => {
      const [x, y] = axes("seconds", (value) => (Number.isInteger(value) && value >= 0 && value < rowsShown() ? String(value) : ""), 40);
      return {
        scales: { x: { time: false, range: (_, low, high) => [low, high] }, y: { dir: -1, range: () => [-0.5, rowsShown() - 0.5] } },
        axes: [x, { ...y, grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50], space: 18 }],
        series: [{}, { paths: () => null, points: { show: false } }],
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: true } },
        hooks: { draw: [draw], setCursor: [onCursor] },
      };
    },
  });
  place.addEventListener("click", (event) => {
    if (chosen?.n && event.pointerType !== "touch") openManifest(id, chosen.n); // a finger points first
  });
  place.addEventListener("dblclick", () => { follows = true; show(); });

  function rowsShown() {
    return Math.max(1, view?.slots.length || view?.concurrency || 1);
  }

  function end() {
    return view ? Math.max(view.seconds, rows.at(-1)?.at ?? 0) : 0;
  }

  // As many seconds as the newest jobs of every slot took, so that bars are wide enough to see.
  function usualWidth() {
    const some = rows.slice(-JOBS_ACROSS * rowsShown());
    const start = Math.min(...some.map(beginning));
    return some.length ? Math.max(1, end() - start) : 60;
  }

  function show() {
    if (!view) return;
    if (follows || !window_) window_ = [end() - usualWidth(), end()];
    newer.disabled = latest.disabled = follows;
    older.disabled = (rows[0]?.n ?? 0) <= 1 && window_[0] <= beginning(rows[0]);
    const slots = rowsShown();
    chart.setHeight(44 + slots * (slots <= 12 ? 24 : slots <= 30 ? 14 : 8));
    chart.isZoomed = false;
    chart.setData([window_, [0, 0]]);
  }

  // New decisions leave a reader alone who looks at a part.
  function showNew() {
    if (chart.isZoomed) chart.plot.redraw(false);
    else show();
  }

  async function move(share) {
    const width = window_[1] - window_[0];
    const start = window_[0] + width * share;
    follows = start + width >= end();
    window_ = [start, start + width];
    if (start < beginning(rows[0])) await fetchOlder(id, rows).catch((error) => setText(details, error.message));
    show();
  }

  function draw(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const row of rows) if (row.slot !== null) drawJob(plot, row);
    for (const slot of view?.slots ?? []) drawOpen(plot, slot);
    ctx.restore();
  }

  function lane(plot, slot) {
    const height = plot.bbox.height / rowsShown();
    return [plot.bbox.top + height * (slot + 0.15), height * 0.7];
  }

  function block(plot, slot, from, to, name) {
    const [top, height] = lane(plot, slot);
    const [left, right] = [plot.valToPos(from, "x", true), plot.valToPos(to, "x", true)];
    plot.ctx.fillStyle = color(name);
    plot.ctx.fillRect(left, top, Math.max(right - left, 1), height);
    return [left, top, right - left, height];
  }

  function drawJob(plot, row) {
    const { started, trained, at, opened } = times(row);
    if (at < plot.scales.x.min || opened > plot.scales.x.max) return;
    const name = OUTCOMES[row.outcome];
    if (started > opened) block(plot, row.slot, opened, started, "idle");
    if (at > trained) block(plot, row.slot, trained, at, `${name}-soft`);
    block(plot, row.slot, started, trained, name);
    const [top, height] = lane(plot, row.slot);
    const x = plot.valToPos(at, "x", true);
    plot.ctx.fillStyle = color("card");
    plot.ctx.fillRect(x - 1, top, 2, height);
    if (row.outcome !== "merged") cross(plot.ctx, Math.max(x - height * 0.6, plot.valToPos(started, "x", true) + height * 0.4), top + height / 2, height * 0.28);
    if (row === chosen) outline(plot, row.slot, opened, at);
  }

  function drawOpen(plot, slot) {
    if (!slot.client || slot.opened_at === null) return;
    const [left, top, width, height] = block(plot, slot.slot, slot.opened_at, plot.scales.x.max, slot.stage === "claimed" ? "green-soft" : "idle");
    plot.ctx.strokeStyle = color(slot.stage === "claimed" ? "green" : "muted");
    plot.ctx.setLineDash([4, 3]);
    plot.ctx.lineWidth = 1;
    plot.ctx.strokeRect(left, top, width, height);
    plot.ctx.setLineDash([]);
  }

  function outline(plot, slot, from, to) {
    const [top, height] = lane(plot, slot);
    const [left, right] = [plot.valToPos(from, "x", true), plot.valToPos(to, "x", true)];
    plot.ctx.strokeStyle = color("text");
    plot.ctx.lineWidth = 2 * window.devicePixelRatio;
    plot.ctx.strokeRect(left, top - 1, Math.max(right - left, 2), height + 2);
  }

  function onCursor(plot) {
    const { left, top } = plot.cursor;
    if (left < 0 || !view) return;
    const slot = Math.floor((top / plot.over.clientHeight) * rowsShown());
    const time = plot.posToVal(left, "x");
    const row = rows.findLast((one) => one.slot === slot && times(one).opened <= time && one.at >= time);
    const now = view.slots.find((one) => one.slot === slot && one.opened_at !== null && one.opened_at <= time);
    choose(row ?? now ?? null);
  }

  function choose(one) {
    if (one === chosen) return;
    chosen = one;
    open.hidden = !one?.n;
    replace(details, one === null ? hint() : one.n ? jobText(one) : openText(one));
    chart.plot?.redraw(false);
  }

  function onKey(event) {
    if (event.target !== figure) return;
    if (event.key === "Enter" && chosen?.n) { openManifest(id, chosen.n); return; }
    const ended = rows.filter((row) => row.slot !== null);
    if (!ended.length || !event.key.startsWith("Arrow")) return;
    event.preventDefault();
    const from = chosen?.n ? chosen : ended.at(-1);
    const slots = [...new Set(ended.map((row) => row.slot))].sort((a, b) => a - b);
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const slot = step ? slots[Math.max(0, Math.min(slots.length - 1, slots.indexOf(from.slot) + step))] : from.slot;
    const lane_ = ended.filter((row) => row.slot === slot);
    let to = from;
    if (step) to = lane_.reduce((best, row) => (Math.abs(row.at - from.at) < Math.abs(best.at - from.at) ? row : best));
    else if (chosen?.n) to = lane_[Math.max(0, Math.min(lane_.length - 1, lane_.indexOf(from) + (event.key === "ArrowLeft" ? -1 : 1)))];
    if (to.at < window_[0] || to.at > window_[1]) {
      const width = window_[1] - window_[0];
      [follows, window_] = [false, [to.at - width * 0.7, to.at + width * 0.3]];
      show();
    }
    choose(to);
  }

  function showOpenJobs() {
    const failing = view.slots.filter((slot) => slot.error).length;
    setText(summary, failing ? `Open jobs, ${count(failing)} of which failed before` : "Open jobs");
    if (failing) openJobs.open = true;
    const cells = view.slots.filter((slot) => slot.client).map((slot) => [String(slot.slot), slot.client, slot.pool ?? "", STAGES[slot.stage] ?? "open", slot.trainer ?? "-",
      slot.opened_at === null ? `in version ${count(slot.opened_version)}` : `at ${duration(slot.opened_at)}`, slot.failures ? count(slot.failures) : "", reason(slot.error)]);
    replace(jobs, cells.length ? table("Open jobs", [["slot", "number"], ["client", ""], ["pool", ""], ["stage", ""], ["trainer", ""], ["opened", "number"], ["failures", "number"], ["last error", "why"]], cells)
      : h("p", { class: "muted" }, "No job is open."));
  }

  let before = "";
  return {
    element,
    addRows: showNew,
    update(now) {
      view = now;
      showNew();
      const text = JSON.stringify(now.slots);
      if (text !== before) { before = text; showOpenJobs(); }
    },
    destroy: () => chart.destroy(),
  };
}

function hint() {
  return "Point at a job, or focus the chart and use the arrow keys. Drag to zoom, double-click to go back.";
}

function beginning(row) {
  return row ? times(row).opened : 0;
}

// A job's times; what is unknown falls on the next that is known.
function times(row) {
  const started = Math.min(row.started_at ?? row.at, row.at);
  const trained = Math.min(started + (row.train_seconds ?? 0), row.at);
  return { opened: Math.min(row.opened_at ?? started, started), started, trained, at: row.at };
}

function jobText(row) {
  const { opened, started, trained, at } = times(row);
  const waited = row.opened_at === null ? "" : `, after it waited ${duration(started - opened)} for a trainer`;
  const who = row.trainer ? `${row.client} on ${row.trainer}` : row.client;
  const worked = row.trainer ? [` trained ${duration(trained - started)}${waited}; ${duration(at - trained)} until it was decided. `] : " ";
  const staleness = row.staleness === null ? "" : `, staleness ${row.staleness}`;
  return [h("b", {}, `slot ${row.slot}, job ${row.generation}: ${who}`), worked, pill(row.outcome),
    ` at ${duration(at)} in version ${count(row.version)}${staleness}. `, reason(row.reason)];
}

function openText(slot) {
  const who = slot.trainer ? `${slot.client} on ${slot.trainer}` : slot.client;
  return [h("b", {}, `slot ${slot.slot}, job ${slot.generation}: ${who}`), ` is open since ${duration(slot.opened_at)}`, slot.stage ? `, ${STAGES[slot.stage]}` : "",
    slot.error ? [". Its last error: ", reason(slot.error)] : "."];
}

function cross(ctx, x, y, size) {
  ctx.strokeStyle = color("card");
  ctx.lineWidth = Math.max(1.5, size * 0.4);
  ctx.beginPath();
  ctx.moveTo(x - size, y - size);
  ctx.lineTo(x + size, y + size);
  ctx.moveTo(x + size, y - size);
  ctx.lineTo(x - size, y + size);
  ctx.stroke();
}

function legend() {
  const names = [["idle", "waits for a trainer"], ["blue", "trains, merged"], ["blue-soft", "delay and delivery"],
    ["red", "rejected"], ["orange", "abandoned"], ["green-soft", "open now"]];
  return h("ul", { class: "legend" }, names.map(([name, text]) => h("li", {}, h("span", { class: "swatch", vars: { "--swatch": `var(--${name})` } }), text)));
}
