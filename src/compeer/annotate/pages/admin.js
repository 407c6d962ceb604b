// The admin's page: its tabs, the project they are about, and what all views share. A tab is a part of the address
// after "#", so that the browser's own buttons work: #agreement, #disagreements/history/2, #item/4503.

import { make } from "../parts.js";
import { agreementView } from "./agreement.js";
import { dataView } from "./data.js";
import { auditView, disagreementsView, itemView, passedView } from "./items.js";
import { peopleView } from "./people.js";
import { Failure, call } from "./server.js";
import { leaveTo, me as readMe } from "./session.js";
import { say, speak } from "./words.js";

const TABS = { agreement: agreementView, disagreements: disagreementsView, passed: passedView, people: peopleView, data: dataView, audit: auditView };
const VIEWS = { ...TABS, item: itemView };
const PROJECT = "compeer.workbench.admin-project";
const at = (id) => document.getElementById(id);

let me = null;
let projects = [];
let renders = 0;

/** What a view is given: the project, and ways to act, to tell, to ask and to go elsewhere. */
const page = {
  project: () => projects.find((one) => String(one.id) === localStorage.getItem(PROJECT)) ?? projects[0] ?? null,
  me: () => me.person,
  tell(text) {
    at("status").textContent = text;
  },
  /** Does something; what the server refuses is shown, and gives null. */
  async attempt(doing) {
    try {
      return await doing();
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      if (error.kind === "login") return leaveTo("/login");
      warn(say("failed", { message: error.message || say("failed_offline") }));
      return null;
    }
  },
  /** Asks before what cannot be undone. */
  sure(question, what, yes) {
    at("sure-name").textContent = question;
    at("sure-what").textContent = what;
    at("sure-yes").textContent = yes;
    const dialog = at("sure-dialog");
    dialog.returnValue = "";
    dialog.showModal();
    return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
  },
  /** Reads the projects again, after one was made or changed; `chosen` becomes the one that is shown. */
  async reread(chosen) {
    projects = (await call("GET", "/api/projects")).projects;
    if (chosen) localStorage.setItem(PROJECT, String(chosen));
    drawProjects();
  },
  /** Goes to a tab, and draws it anew where it is shown already. */
  go(tab) {
    if (location.hash === `#${tab}`) draw();
    else location.hash = tab;
  },
  draw,
};

function warn(text) {
  at("toast").textContent = text;
  at("toast").hidden = false;
  setTimeout(() => (at("toast").hidden = true), 8000);
}

function drawProjects() {
  at("project-choice").hidden = projects.length === 0;
  at("project").replaceChildren(...projects.map((one) => make("option", { value: String(one.id), text: one.name, selected: one.id === page.project()?.id })));
}

async function draw() {
  if (!me) return;
  const [name, ...rest] = location.hash.slice(1).split("/").map(decodeURIComponent);
  const chosen = name in VIEWS ? name : page.project() ? "agreement" : "data";
  at("tabs").replaceChildren(...Object.keys(TABS).map((tab) => make("a", { href: `#${tab}`, text: say(`tabs.${tab}`), "aria-current": tab === chosen ? "page" : null })));
  const turn = (renders += 1);
  at("view").ariaBusy = "true"; // until the view is there, what is shown may be of another project
  const view = await page.attempt(() => VIEWS[chosen](page, ...rest));
  if (turn !== renders) return;
  if (view) at("view").replaceChildren(view);
  at("view").ariaBusy = "false";
}

async function start() {
  me = await readMe();
  if (!me) return;
  if (!me.person.roles.includes("admin")) return void location.replace("/");
  at("to-annotate").hidden = !me.person.roles.some((role) => role !== "admin");
  await page.reread();
  await draw();
}

speak(draw);
at("to-annotate").href = "/";
window.addEventListener("hashchange", async () => {
  await draw();
  window.scrollTo(0, 0);
  at("view").focus({ preventScroll: true });
});
at("project").addEventListener("change", () => {
  localStorage.setItem(PROJECT, at("project").value);
  draw();
});
at("logout").addEventListener("click", async () => {
  await page.attempt(() => call("POST", "/api/logout"));
  leaveTo("/login");
});
page.attempt(start);
