// The page: a list of federations, or one of them, as the address after # says.

import { setToken } from "./api.js";
import { refreshAccess } from "./control.js";
import { setText } from "./dom.js";
import { showFederation } from "./federation.js";
import { showList } from "./list.js";

const main = document.getElementById("main");
const connection = document.getElementById("connection");
let leave = () => {};

function onConnection(isOpen) {
  connection.classList.toggle("lost", !isOpen);
  setText(connection, isOpen ? "live" : "connection lost, trying again");
}

// #/ID?token=... : a token in the address is kept for this tab, and leaves the address at once.
function takeToken() {
  const [path, query] = location.hash.split("?");
  const given = new URLSearchParams(query ?? "").get("token");
  if (given) {
    setToken(given);
    history.replaceState(null, "", path);
  }
}

function route() {
  if (location.hash && !location.hash.startsWith("#/")) return;
  takeToken();
  leave();
  const id = decodeURIComponent(location.hash.slice(2));
  leave = id ? showFederation(main, id, onConnection) : showList(main, onConnection);
  window.scrollTo(0, 0);
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", () => { route(); main.focus({ preventScroll: true }); });
route();
refreshAccess();
