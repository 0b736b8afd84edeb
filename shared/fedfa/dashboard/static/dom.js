// Builds elements. Every text becomes a text node, whoever wrote it: nothing is parsed as HTML.

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") setVariables(element, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

// The policy of the page refuses style attributes; custom properties are set one by one.
function setVariables(element, variables) {
  for (const [name, value] of Object.entries(variables)) element.style.setProperty(name, value);
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const announcer = document.getElementById("announcer");

export function announce(text) {
  announcer.textContent = text;
}

export const STATUS_NAMES = {
  waiting: "waiting", running: "running", finished: "finished", stopped: "stopped",
  failed: "failed", unreadable: "unreadable",
};

export function pill(word) {
  return h("span", { class: `pill ${word}` }, word.replace("_", " "));
}

// A table with a caption for those who cannot see where it stands.
export function table(caption, columns, rows) {
  const head = columns.map(([name, kind]) => h("th", { scope: "col", class: kind }, name));
  const body = rows.map((cells) =>
    h("tr", {}, cells.map((cell, at) =>
      h(at ? "td" : "th", { class: columns[at][1], scope: at ? undefined : "row" }, cell))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "visually-hidden" }, caption),
      h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

// A share from 0 to 1 as a bar with its number.
export function bar(share, text, kind = "") {
  return h("span", { class: `bar ${kind}`, vars: { "--share": Math.max(0, Math.min(1, share)) } },
    h("span", { class: "number" }, text));
}

// An error: its first line, and the lines of code that it brings along on demand.
export function reason(text) {
  if (!text) return "";
  const at = text.indexOf("\n");
  if (at < 0) return text;
  return [text.slice(0, at), h("details", {}, h("summary", {}, "where"), h("pre", {}, text.slice(at + 1)))];
}
