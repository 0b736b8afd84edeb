// The log: what was decided, newest first; every row opens its manifest.

import { getJson, getText } from "./api.js";
import { h, pill, reason, replace, setText } from "./dom.js";
import { count, duration } from "./format.js";

const PAGE = 20;
const COLUMNS = [["manifest", "number"], ["at", "number"], ["decision", ""], ["version", "number"], ["client", ""],
  ["trainer", ""], ["job", ""], ["staleness", "number"], ["why", "why"]];

export async function openManifest(id, n) {
  const text = h("pre", { tabindex: "0" }, "Reading ...");
  const close = h("button", { type: "button", onclick: () => box.close() }, "Close");
  const box = h("dialog", { class: "manifest", "aria-labelledby": "manifest-title" },
    h("h2", { id: "manifest-title" }, `Manifest ${n}`), text, h("div", { class: "buttons" }, close));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  try {
    setText(text, JSON.stringify(JSON.parse(await getText(`api/federations/${encodeURIComponent(id)}/manifests/${n}`)), null, 2));
  } catch (error) {
    setText(text, error.message);
  }
}

export function decisionsSection(id, rows) {
  let [view, limit, showsNotable, before] = [null, PAGE, false, ""];
  const body = h("tbody");
  const older = h("button", { type: "button", onclick: showOlder }, "Older");
  const filter = h("select", { onchange: () => { showsNotable = filter.value === "notable"; limit = PAGE; show(); } },
    h("option", { value: "all" }, "all, newest first"), h("option", { value: "notable" }, "only refused, pools and the end"));
  const note = h("p", { class: "muted" });
  const element = h("section", { "aria-labelledby": "decisions" },
    h("div", { class: "bar-head" }, h("h2", { id: "decisions" }, "Decisions"), h("label", { class: "choice" }, "Show ", filter)),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "table of decisions" },
      h("table", {}, h("caption", { class: "visually-hidden" }, "Decisions, newest first"),
        h("thead", {}, h("tr", {}, COLUMNS.map(([name, kind]) => h("th", { scope: "col", class: kind }, name)))), body)),
    h("div", { class: "buttons left" }, older), note);

  function shown() {
    const all = showsNotable ? view?.notable ?? [] : rows.slice(-limit).reverse();
    return all.slice(0, limit);
  }

  // Rows that stay are not made anew: whoever stands on one with the keyboard keeps standing there.
  function show() {
    const wanted = shown();
    const keys = wanted.map((row) => [row.n, row.slot, row.generation, row.outcome, row.reason].join("/"));
    const have = new Map([...body.children].map((element) => [element.dataset.key, element]));
    keys.forEach((key, at) => {
      const element = have.get(key) ?? rowOf(id, wanted[at], key);
      have.delete(key);
      if (body.children[at] !== element) body.insertBefore(element, body.children[at] ?? null);
    });
    for (const element of have.values()) element.remove();
    const first = rows[0]?.n ?? 0;
    older.hidden = showsNotable ? (view?.notable.length ?? 0) <= limit : first <= 1 && rows.length <= limit;
    const text = showsNotable && view ? `The newest ${count(view.notable.length)} of those that were read.` : "";
    setText(note, wanted.length ? text : "Nothing was decided yet.");
  }

  async function showOlder() {
    limit += PAGE;
    if (!showsNotable && rows.length < limit && (rows[0]?.n ?? 0) > 1) await fetchOlder(id, rows).catch((error) => setText(note, error.message));
    show();
  }

  return {
    element,
    addRows: () => { if (!showsNotable) show(); },
    update(now) {
      view = now;
      const text = showsNotable ? JSON.stringify(now.notable) : `${rows.length}`;
      if (text !== before) { before = text; show(); }
    },
  };
}

// Puts the rows of the manifests before the first one in front. The same array serves the timeline.
export async function fetchOlder(id, rows) {
  const before = rows[0]?.n ?? 0;
  if (before <= 1) return;
  const answer = await getJson(`api/federations/${encodeURIComponent(id)}/decisions?before=${before}`);
  if (rows[0]?.n === before) rows.unshift(...answer.rows.reverse());
}

function rowOf(id, row, key) {
  const open = h("button", { type: "button", class: "link", "aria-label": `open manifest ${row.n}`, onclick: () => openManifest(id, row.n) }, count(row.n));
  const job = row.slot === null ? "" : `slot ${row.slot}, ${row.generation}`;
  const cells = [open, duration(row.at), pill(row.outcome), count(row.version), row.client ?? "", row.trainer ?? "", job, row.staleness ?? "", reason(row.reason)];
  return h("tr", { "data-key": key }, cells.map((cell, at) => h("td", { class: COLUMNS[at][1] }, cell)));
}
