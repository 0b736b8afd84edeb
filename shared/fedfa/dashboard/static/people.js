// Who works, who takes part, and what travels.

import { card, level } from "./charts.js";
import { bar, h, replace, table } from "./dom.js";
import { bytes, count, duration, percent } from "./format.js";

const FEW_CLIENTS = 12;

export function trainersSection() {
  const place = h("div", { class: "tables" });
  const element = h("section", { "aria-labelledby": "trainers" }, h("h2", { id: "trainers" }, "Trainers and pools"), place);
  return { element, update: onChange((view) => [view.trainers, view.pools], (view) => {
    const trainers = table("Trainers", [["trainer", ""], ["pool", ""], ["time spent computing", "wide"], ["merged", "number"], ["refused", "number"], ["last seen", "number"], ["now", ""]],
      view.trainers.map((one) => [one.name, one.pool ?? "-", one.busy === null ? "-" : bar(one.busy, percent(one.busy)), count(one.merged), count(one.refused),
        one.last_at === null ? "-" : `at ${duration(one.last_at)}`, one.now.join(", ") || "-"]));
    const pools = table("Pools", [["pool", ""], ["clients", "number"], ["trainers", "number"], ["time spent computing", "wide"], ["open jobs", "number"], ["merged", "number"], ["refused", "number"]],
      view.pools.map((one) => [one.down ? [one.name, " ", h("span", { class: "pill failed" }, "down")] : one.name, count(one.clients), count(one.trainers),
        one.busy === null ? "-" : bar(one.busy, percent(one.busy), "green"), count(one.open), count(one.merged), count(one.refused)]));
    replace(place, view.trainers.length ? trainers : h("p", { class: "muted" }, "Nobody has finished a job yet."), pools);
  }) };
}

export function clientsSection() {
  let [view, showsAll] = [null, false];
  const lead = h("p", { class: "muted" });
  const place = h("div");
  const more = h("button", { type: "button", onclick: () => { showsAll = !showsAll; show(); } });
  const curve = card("merged updates of each client, fewest first", {
    kind: "number", height: 200, series: [{ colorName: "green", fill: true }],
    yRange: (_, __, high) => [0, Math.max(high || 0, view?.clients.mean ?? 0, 1) * 1.15],
    yText: (value) => (Number.isInteger(value) ? count(value) : ""),
    draw: (plot) => { if (view?.clients.mean) level(plot, view.clients.mean, `mean ${view.clients.mean.toFixed(1)}`, "red"); },
    readout: (at, isLast) => (isLast ? `mean ${view.clients.mean?.toFixed(1) ?? "-"}` : `client ${count(rank(at) + 1)} of ${count(view.clients.count)}: ${count(view.clients.curve[at])} merged`),
    summary: () => `From ${view.clients.curve[0]} to ${view.clients.curve.at(-1)} merged updates, mean ${view.clients.mean?.toFixed(1)}`,
  });
  const element = h("section", { "aria-labelledby": "clients" }, h("h2", { id: "clients" }, "Clients"), lead,
    h("div", { class: "pair" }, curve.element, h("div", {}, place, more)));
  const rank = (at) => Math.floor((at * (view.clients.count - 1)) / Math.max(1, view.clients.curve.length - 1));

  function show() {
    const { rows, count: all, starved } = view.clients;
    const most = Math.max(1, ...view.clients.curve);
    const text = starved ? `${count(starved)} of ${count(all)} clients had far fewer updates merged than an equal chance would give.`
      : `${count(all)} clients; none had far fewer updates merged than an equal chance would give.`;
    replace(lead, all ? text : "The clients are known once there is a first model.");
    replace(place, table("Clients, those with the fewest merged updates first",
      [["client", ""], ["pool", ""], ["examples", "number"], ["merged", "wide"], ["refused", "number"], ["newest in version", "number"]],
      (showsAll ? rows : rows.slice(0, FEW_CLIENTS)).map((one) => [
        [one.name, one.starved && [" ", h("span", { class: "pill abandoned" }, "starved")], one.set_aside && [" ", h("span", { class: "pill rejected" }, "set aside")]],
        one.pool, count(one.examples), bar(one.merged / most, count(one.merged), "green"), count(one.refused), one.last_version === null ? "never" : count(one.last_version)])));
    more.hidden = rows.length <= FEW_CLIENTS;
    more.textContent = showsAll ? "Show fewer" : `Show ${count(rows.length)}`;
  }

  const change = onChange((now) => now.clients, () => {
    curve.update([view.clients.curve.map((_, at) => rank(at) + 1), view.clients.curve]);
    show();
  });
  return { element, update: (now) => { view = now; change(now); }, destroy: () => curve.destroy() };
}

export function movedSection() {
  const place = h("dl", { class: "tiles small" });
  const element = h("section", { "aria-labelledby": "moved" }, h("h2", { id: "moved" }, "Bytes moved"), place,
    h("p", { class: "muted" }, "Computed from the tensors' sizes and the log; headers, retries and evaluations are not in it."));
  return { element, update: onChange((view) => view.bytes, ({ bytes: moved }) => {
    if (!moved) { replace(place); return; }
    const tile = (name, value, note) => h("div", {}, h("dt", {}, name), h("dd", {}, h("span", {}, bytes(value)), h("small", {}, note)));
    replace(place, tile("one model", moved.model, "float parameters, buffers, integers"),
      tile("models to trainers", moved.models_read, "bucket to trainers, one for each update"),
      tile("updates stored", moved.updates_stored, "trainers to bucket"),
      tile("updates read", moved.updates_read, "bucket to aggregator"),
      tile("models stored", moved.models_stored, "aggregator to bucket"));
  }) };
}

// Calls show(view) when what `part` picks of it is not what it was.
function onChange(part, show) {
  let before = "";
  return (view) => {
    const text = JSON.stringify(part(view));
    if (text !== before) { before = text; show(view); }
  };
}
