// Every federation: how it stands, at a glance.

import { follow } from "./api.js";
import { sparkline } from "./charts.js";
import { onAccess, start } from "./control.js";
import { h, pill, replace, setText } from "./dom.js";
import { ago, count, date, duration, metric } from "./format.js";

const store = document.getElementById("store");

export function showList(main, onConnection) {
  document.title = "FedFa";
  const startButton = h("button", { type: "button", class: "main", onclick: start }, "Start a federation");
  const trouble = h("p", { class: "problem", role: "alert" });
  const list = h("ul", { class: "federations" });
  const nothing = h("p", { class: "muted" }, "Reading ...");
  replace(main, h("div", { class: "head" }, h("h1", {}, "Federations"), startButton), trouble, nothing, list);
  const items = new Map();
  const forget = onAccess(({ canControl }) => { startButton.hidden = !canControl; });

  function update(view) {
    setText(store, view.store);
    setText(nothing, view.federations.length ? "" : "No federations yet. `fedfa submit SPEC` starts one.");
    const shown = new Set();
    view.federations.forEach((federation, at) => {
      shown.add(federation.id);
      let item = items.get(federation.id);
      if (!item) items.set(federation.id, item = itemOf(federation));
      item.update(federation);
      if (list.children[at] !== item.element) list.insertBefore(item.element, list.children[at] ?? null);
    });
    for (const [id, item] of items) {
      if (!shown.has(id)) { item.remove(); items.delete(id); }
    }
  }

  const close = follow("api/events", {
    view: update, trouble: (event) => setText(trouble, event.trouble),
  }, onConnection);
  return () => { close(); forget(); for (const item of items.values()) item.remove(); };
}

function itemOf(federation) {
  const link = h("a", { href: `#/${federation.id}`, class: "name" }, federation.id);
  const [status, facts, value] = [h("span"), h("dl", { class: "facts" }), h("span", { class: "value" })];
  const [what, why] = [h("span", { class: "muted what" }), h("p", { class: "muted why" })];
  const host = h("span", { class: "spark", "aria-hidden": "true" });
  const element = h("li", {}, h("div", { class: "title" }, link, status, what), h("div", { class: "quality" }, host, value), facts, why);
  let spark = null;
  let before = "";

  function update(now) {
    const text = JSON.stringify(now);
    if (text === before) return;
    before = text;
    replace(status, pill(now.status));
    setText(why, (now.reason ?? "").split("\n")[0]);
    if (now.status === "unreadable") return;
    setText(what, `${now.task}, ${now.rule}, Mc ${now.concurrency}`);
    const target = now.target === null ? "" : `, target ${Number(now.target.toPrecision(4))}`;
    replace(value, now.metric ? [h("b", {}, metric(now.latest)), ` ${now.metric}${target}`] : "not evaluated yet");
    replace(facts, fact("version", count(now.version)), fact("updates", count(now.merged)),
      fact("refused", count(now.refused)), fact("time", duration(now.seconds)),
      h("div", { title: date(now.created_at) }, h("dt", {}, "submitted"), h("dd", {}, ago(now.created_at))));
    if (now.spark.length > 1) {
      spark ??= sparkline(host);
      spark.update(now.spark, now.target);
    }
  }

  return { element, update, remove: () => { spark?.destroy(); element.remove(); } };
}

function fact(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}
