// The guidelines beside the task: a column where there is room, else a sheet over the page.

import { make } from "../parts.js";
import { markdown } from "./markdown.js";
import { call } from "./server.js";
import { say } from "./words.js";

const KEY = "compeer.workbench.guide";
const at = (id) => document.getElementById(id);
const wide = matchMedia("(min-width: 75rem)");
let shown = null; // {project, version, text}

/** Shows the guidelines of a project, read anew if the version is another; true if they changed during the work. */
export async function guidelines(project, version) {
  if (shown?.project === project && shown.version === version) return false;
  const changed = shown?.project === project;
  const { text } = await call("GET", `/api/projects/${project}/guidelines?version=${version}`);
  if (!shown) fit();
  shown = { project, version, text };
  drawGuide();
  return changed;
}

export function drawGuide() {
  if (!shown) return;
  at("guide-version").textContent = say("version", { version: shown.version });
  at("guide-text").replaceChildren(...(shown.text.trim() ? markdown(shown.text) : [make("p", { class: "soft", text: say("guidelines_none") })]));
}

/** Opens or closes the guidelines; a wide page remembers it. */
export function toggleGuide(open = at("guide").hidden) {
  at("guide").hidden = !open;
  at("guide-toggle").setAttribute("aria-expanded", String(open));
  if (wide.matches) localStorage.setItem(KEY, open ? "open" : "closed");
  else if (open) at("guide-close").focus();
  else at("guide-toggle").focus();
}

/** Whether the guidelines lie over the page. */
export const guideCovers = () => !at("guide").hidden && !wide.matches;

export function startGuide() {
  at("guide-toggle").addEventListener("click", () => toggleGuide());
  at("guide-close").addEventListener("click", () => toggleGuide(false));
  wide.addEventListener("change", () => shown && fit());
}

/** Where there is room, the guidelines are open unless they were closed. */
function fit() {
  at("guide").hidden = !wide.matches || localStorage.getItem(KEY) === "closed";
  at("guide-toggle").setAttribute("aria-expanded", String(!at("guide").hidden));
}
