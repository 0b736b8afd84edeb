// The spec as it was submitted, as YAML that can be submitted again.

import { getText } from "./api.js";
import { h, setText } from "./dom.js";

export function specSection(id) {
  const text = h("pre", { tabindex: "0", "aria-label": "spec as YAML" });
  const details = h("details", {}, h("summary", {}, h("h2", { id: "spec" }, "Spec")), text);
  details.addEventListener("toggle", async () => {
    if (!details.open || text.textContent) return;
    try {
      setText(text, await getText(`api/federations/${encodeURIComponent(id)}/spec`));
    } catch (error) {
      setText(text, error.message);
    }
  });
  return { element: h("section", { "aria-labelledby": "spec" }, details), update() {} };
}
