// Start and stop. The server decides; what is hidden here is hidden for comfort only.

import { getJson, post, setToken, token } from "./api.js";
import { announce, h } from "./dom.js";

const EXAMPLE = `task: {name: digits}
rule: {name: fedfa-delta, window: 5}
clients: 20
concurrency: 8
partition: {kind: dirichlet, alpha: 0.3}
local:
  epochs: 5
  optimizer: {name: sgd, learning_rate: 0.1}
evaluation: {every_versions: 10}
stop:
  target: {metric: accuracy, value: 0.95}
  updates: 600
`;

const button = document.getElementById("access");
const listeners = new Set();
export const access = { canControl: false, isAllowed: false };

export function onAccess(listener) {
  listeners.add(listener);
  listener(access);
  return () => listeners.delete(listener);
}

export async function refreshAccess() {
  try {
    const answer = await getJson("api/access");
    access.canControl = answer.can_control;
    access.isAllowed = answer.is_allowed;
  } catch { /* the connection's state says so */ }
  button.hidden = false;
  button.disabled = !access.canControl;
  button.textContent = !access.canControl ? "Read-only" : access.isAllowed ? "Lock" : "Unlock";
  button.title = access.canControl ? "" : "The server was started without FEDFA_DASHBOARD_TOKEN";
  for (const listener of listeners) listener(access);
}

button.addEventListener("click", () => {
  if (access.isAllowed) { setToken(""); refreshAccess(); }
  else askForToken();
});

function dialog(title, act, fields, submit) {
  const problem = h("p", { class: "problem", role: "alert" });
  const send = h("button", { type: "submit", class: "main" }, act);
  const form = h("form", { method: "dialog" }, h("h2", { id: "dialog-title" }, title), fields, problem,
    h("div", { class: "buttons" },
      h("button", { type: "button", onclick: () => box.close() }, "Cancel"), send));
  const box = h("dialog", { "aria-labelledby": "dialog-title" }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    problem.textContent = "";
    send.disabled = true;
    try {
      await submit();
      box.close();
    } catch (error) {
      problem.textContent = error.message;
      if (error.status === 401) { setToken(""); refreshAccess(); }
    }
    send.disabled = false;
  });
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

function askForToken(then = () => {}) {
  const input = h("input", { type: "password", autocomplete: "off", required: true });
  dialog("Unlock start and stop", "Unlock", [
    h("label", {}, "Token", input),
    h("p", { class: "muted" }, "FEDFA_DASHBOARD_TOKEN of the server. It is kept until this tab is closed."),
  ], async () => {
    setToken(input.value.trim());
    await refreshAccess();
    if (!access.isAllowed) { setToken(""); throw new Error("that is not the token"); }
    then();
  });
}

function allowed(then) {
  if (access.isAllowed && token()) then();
  else askForToken(then);
}

export function start() {
  allowed(() => {
    const spec = h("textarea", { rows: 16, spellcheck: "false", required: true });
    spec.value = EXAMPLE;
    const id = h("input", { placeholder: "optional", pattern: "[a-z0-9][a-z0-9\\-]{0,62}", autocomplete: "off" });
    dialog("Start a federation", "Start", [
      h("label", {}, "Id", id), h("label", {}, "Spec (YAML)", spec),
    ], async () => {
      const answer = await post("api/federations", { spec: spec.value, id: id.value.trim() });
      announce(`${answer.id} was started`);
      location.hash = `#/${answer.id}`;
    });
  });
}

export function stop(federation) {
  allowed(() => {
    const text = h("input", { value: "stopped from the dashboard", maxlength: 4000 });
    dialog(`Stop ${federation}?`, "Stop", [
      h("p", {}, "It ends with what it has; what is in training is dropped. This cannot be undone."),
      h("label", {}, "Reason, kept in the log", text),
    ], async () => {
      await post(`api/federations/${federation}/stop`, { reason: text.value });
      announce(`${federation} was asked to stop`);
    });
  });
}
