// Talks to the server this page came from. All paths are relative: the page may lie below a prefix.

const TOKEN = "fedfa-token"; // of this tab alone

export function token() {
  return sessionStorage.getItem(TOKEN) ?? "";
}

export function setToken(value) {
  if (value) sessionStorage.setItem(TOKEN, value);
  else sessionStorage.removeItem(TOKEN);
}

async function ask(path, options = {}) {
  const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: { ...headers, ...options.headers } });
  } catch {
    throw new Error("the server does not answer");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let reason = `${answer.status} ${answer.statusText}`;
  try { reason = JSON.parse(text).error ?? reason; } catch { /* not ours */ }
  throw Object.assign(new Error(reason), { status: answer.status });
}

export async function getJson(path) {
  return (await ask(path)).json();
}

export async function getText(path) {
  return (await ask(path)).text();
}

export async function post(path, value) {
  const body = JSON.stringify(value);
  return (await ask(path, { method: "POST", body, headers: { "Content-Type": "application/json" } })).json();
}

// Server-sent events, while the page is seen: browsers allow few connections to one server.
export function follow(path, handlers, onConnection) {
  let source = null;

  function open() {
    source = new EventSource(path);
    source.onopen = () => onConnection(true);
    source.onerror = () => onConnection(false);
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
    }
  }

  function onVisibility() {
    if (document.hidden) { source?.close(); source = null; }
    else if (source === null) open();
  }

  document.addEventListener("visibilitychange", onVisibility);
  open();
  return () => {
    document.removeEventListener("visibilitychange", onVisibility);
    source?.close();
  };
}
