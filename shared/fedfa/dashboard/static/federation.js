// One federation: what it is, how good it is, who works on it, what was decided.

import { follow } from "./api.js";
import { onAccess, stop } from "./control.js";
import { decisionsSection } from "./decisions.js";
import { announce, h, pill, reason, replace, setText } from "./dom.js";
import { count, date, duration, metric, rate } from "./format.js";
import { clientsSection, movedSection, trainersSection } from "./people.js";
import { qualitySection, speedSection } from "./quality.js";
import { timelineSection } from "./timeline.js";
import { specSection } from "./spec.js";

export function showFederation(main, id, onConnection) {
  const [status, why, messages] = [h("span"), h("div", { class: "why" }), h("div", { role: "alert" })];
  const stopButton = h("button", { type: "button", class: "danger", onclick: () => stop(id) }, "Stop");
  const tiles = h("dl", { class: "tiles" });
  const notice = h("p", { class: "muted notice" });
  const rows = []; // decisions, ascending
  const sections = [
    qualitySection(), speedSection(), timelineSection(id, rows), trainersSection(), clientsSection(),
    movedSection(), decisionsSection(id, rows), specSection(id),
  ];
  replace(main,
    h("p", { class: "crumb" }, h("a", { href: "#/" }, "Federations")),
    h("div", { class: "head" }, h("h1", {}, id), status, stopButton),
    why, messages, tiles, notice, h("div", { class: "sections" }, sections.map((section) => section.element)));
  document.title = `${id} - FedFa`;
  let [view, mayStop] = [null, false];
  const clock = setInterval(showTiles, 1000);
  const forgetAccess = onAccess(({ canControl }) => { mayStop = canControl; showStop(); });

  function isOn() {
    return view !== null && (view.status === "running" || view.status === "waiting");
  }

  function showStop() {
    stopButton.hidden = !(mayStop && isOn());
  }

  function update(now) {
    if (view && view.uid !== now.uid) { rows.length = 0; } // deleted, and submitted again
    if (view && view.status !== now.status) announce(`${id} is ${now.status}: ${now.reason.split("\n")[0]}`);
    view = now;
    replace(status, pill(now.status));
    replace(why, now.reason && h("p", {}, reason(now.reason)), now.held_up && h("p", {}, now.held_up), now.evaluation_error && h("p", { class: "warning" },
      `evaluation of version ${now.evaluation_error.version}: `, reason(now.evaluation_error.error)));
    showMessages(now.messages);
    showTiles();
    showStop();
    const share = Math.floor(now.coverage * 100);
    setText(notice, now.coverage < 0.9999 && now.decisions
      ? `Counts of clients, trainers and staleness are from ${share}% of the ${count(now.decisions)} decisions so far, evenly spread; the rest is being read.` : "");
    for (const section of sections) section.update(now);
  }

  function showMessages(texts) {
    if (messages.textContent !== texts.join("")) replace(messages, texts.map((text) => h("p", { class: "warning" }, text)));
  }

  function addRows(more) {
    if (rows.length && more[0].n <= rows.at(-1).n) rows.length = 0; // the log begins anew
    rows.push(...more);
    for (const section of sections) section.addRows?.(more);
  }

  function showTiles() {
    if (!view) return;
    const seconds = isOn() ? Math.max(view.seconds, Date.now() / 1000 - view.created_at) : view.seconds;
    replaceTiles(tiles, tilesOf(view, seconds, isOn()));
  }

  const close = follow(`api/federations/${encodeURIComponent(id)}/events`, {
    view: update,
    rows: addRows,
    trouble: (event) => {
      if (event.trouble) showMessages([event.is_missing ? event.trouble : `Trying again: ${event.trouble}`]);
    },
  }, onConnection);

  return () => {
    close();
    forgetAccess();
    clearInterval(clock);
    for (const section of sections) section.destroy?.();
  };
}

function tilesOf(view, seconds, isOn) {
  const tiles = [];
  if (view.metric) {
    const best = view.best ? `best ${metric(view.best.value)}` : "not evaluated yet";
    const target = view.target ? `, target ${metric(view.target.value)}` : "";
    tiles.push([view.metric, metric(view.latest?.value), best + target]);
  }
  const refused = view.rejected + view.abandoned;
  tiles.push(
    ["version", count(view.version), view.final_version === null ? `of ${view.rule}` : `final: ${count(view.final_version)}`],
    ["updates", count(view.merged), refused ? `${count(view.rejected)} rejected, ${count(view.abandoned)} abandoned` : "none refused"],
    ["speed", rate(view.updates_per_second), isOn ? "in the last minute" : "over the whole run"],
    ["staleness", view.staleness.mean === null ? "-" : view.staleness.mean.toFixed(1), `versions on average, at most ${view.staleness.max}`],
    ["slots", isOn ? `${view.slots.length - view.waiting_slots}` : "0", `open of Mc = ${view.concurrency}${view.waiting_slots ? `, ${view.waiting_slots} waiting` : ""}`],
    ["time", duration(seconds), isOn && view.eta_seconds !== null ? `at most ${duration(view.eta_seconds)} to go` : `submitted ${date(view.created_at)}`],
  );
  return tiles;
}

function replaceTiles(list, tiles) {
  if (list.children.length !== tiles.length) {
    replace(list, tiles.map(() => h("div", {}, h("dt"), h("dd", {}, h("span"), h("small")))));
  }
  tiles.forEach(([name, value, note], at) => {
    const [term, definition] = list.children[at].children;
    setText(term, name);
    setText(definition.children[0], value);
    setText(definition.children[1], note);
  });
}
