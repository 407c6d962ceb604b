// The annotation page: the next item comes, is answered by keys, and goes. What is to be sent waits in the outbox
// (outbox.js) until it is acknowledged; drafts are kept here at once and on the server a moment later.

import { make } from "../parts.js";
import { startClock } from "./clock.js";
import { askReason, startDialogs } from "./dialogs.js";
import { drop, keep, kept, saveSoon } from "./draft.js";
import { drawGuide, guidelines, startGuide } from "./guide.js";
import { startKeys } from "./keys.js";
import { add, left, send } from "./outbox.js";
import { Failure, call, tryUntil } from "./server.js";
import { leaveTo, me as readMe } from "./session.js";
import { taskView } from "./task.js";
import { number, say, speak } from "./words.js";

const NOTICED = "compeer.workbench.noticed", PROJECT = "compeer.workbench.project";
const LOOK_AGAIN = 60_000, LONG_STRETCH = 45 * 60;
const at = (id) => document.getElementById(id);
const work = at("work");
const clock = startClock();

let me = null;
let projects = [];
let today = null, remaining = null;
let current = null; // {task, view, revealed} while an item is shown
let resting = null; // why there is no item
let older = []; // labels that "undo" can still open, newest first
let lookAgain = null, busy = false;

// --- saying ----------------------------------------------------------------------------------------------------------

function tell(text) {
  at("status").textContent = text;
}

let toasting = null;

/** Something that must be seen, for a while. */
function warn(text) {
  at("toast").textContent = text;
  at("toast").hidden = false;
  clearTimeout(toasting);
  toasting = setTimeout(() => (at("toast").hidden = true), 8000);
}

/** Says whether the server can be reached, when that changes, and what it refused. */
function connection(state, refusal) {
  const offline = state === "offline";
  if (state === "refused") return warn(refusal.status === 409 ? say("too_late") : say("refused", refusal));
  if (!offline && at("connection").hidden) return;
  at("connection").hidden = !offline;
  if (offline) at("connection").textContent = say(me && left(me.person.id) ? "offline" : "offline_nothing");
  else tell(say("online"));
}

function drawProgress() {
  if (!today) return;
  const parts = [today.cap === null ? say("today_free", { labels: number(today.labels) }) : say("today", { labels: number(today.labels), cap: number(today.cap) })];
  if (remaining !== null) parts.push(say("left", { left: number(remaining) }));
  at("progress").textContent = parts.join(" · ");
}

// --- what is shown ---------------------------------------------------------------------------------------------------

function showTask(task) {
  const own = task.labelled ? null : kept(me.person.id, task.item);
  if (own) Object.assign(task, { answers: own.answers, note: own.note });
  const view = taskView(task, changed);
  current = { task, view, before: own?.seconds ?? 0 };
  resting = null;
  view.form.append(actions(task));
  if (task.crisis && !task.labelled) view.form.querySelector(".item-head").append(make("p", { class: "care" }, make("span", { text: say("crisis_why") }), action("decline_item", "d", decline)));
  work.replaceChildren(view.element);
  view.form.addEventListener("submit", submit);
  view.remark.addEventListener("input", keepDraft);
  if (task.task !== "rating") view.said.scrollTop = view.said.scrollHeight;
  window.scrollTo(0, 0);
  at("item-name").focus({ preventScroll: true });
  tell(`${say(`tasks.${task.task}`)}${task.crisis ? ` (${say("tag_crisis")})` : ""}`);
  clock.restart();
}

function actions(task) {
  const submitting = make("button", { type: "submit", class: "send", id: "submit" }, make("span", { text: say(task.changing ? "save_change" : "submit") }), " ", make("kbd", { text: "⏎" }));
  const others = task.changing ? [action("back", "Esc", next)] : [action("skip_item", "s", () => passOn("skip")), action("flag_item", "x", () => passOn("flag"))];
  return make("div", { class: "actions" }, submitting, action("undo", "u", undo), ...others);
}

function action(words, key, click) {
  return make("button", { type: "button", class: "act", "aria-keyshortcuts": key, click }, make("span", { text: say(words) }), " ", make("kbd", { text: key }));
}

function showRest(reason) {
  current = null;
  resting = reason;
  const again = make("button", { type: "button", class: "send", text: say("look_again"), click: next });
  work.replaceChildren(make("section", { class: "calm-view" }, make("h2", { text: say(`rest.${reason}`) }), make("div", { class: "buttons" }, again, action("undo", "u", undo))));
  again.focus();
  tell(say(`rest.${reason}`));
  if (reason === "waiting") lookAgain = setTimeout(next, LOOK_AGAIN);
}

/** The content notice: once a day, before the first item. */
function showNotice() {
  current = null;
  const declines = make("input", { type: "checkbox", id: "notice-declines", checked: me.person.declines_crisis });
  const start = make("button", { type: "button", class: "send", id: "begin" }, make("span", { text: say("begin") }), " ", make("kbd", { text: "⏎" }));
  start.addEventListener("click", () => alone(async () => {
    localStorage.setItem(NOTICED, noticed());
    if (declines.checked !== me.person.declines_crisis) await setDeclines(declines.checked);
    await fetchNext();
  }));
  const points = ["pause", "crisis", "cap", "talk"].map((point) => make("li", { text: say(`notice_points.${point}`) }));
  work.replaceChildren(make("section", { class: "calm-view", id: "notice" }, make("h2", { text: say("notice_title") }), make("p", { text: say("notice_text") }),
    make("ul", {}, ...points), make("label", { class: "check" }, declines, " ", say("declines")), start));
  start.focus();
}

const noticed = () => `${me.person.id} ${new Date().toDateString()}`;

function draw() {
  drawProgress();
  drawGuide();
  if (!me) return;
  drawProjects();
  if (current) {
    keepDraft();
    showTask(Object.assign(current.task, { answers: current.view.answers(), note: current.view.note() }));
  } else if (resting) showRest(resting);
  else if (localStorage.getItem(NOTICED) !== noticed()) showNotice();
}

function drawProjects() {
  at("project-choice").hidden = projects.length < 2;
  const chosen = localStorage.getItem(PROJECT);
  at("project").replaceChildren(make("option", { value: "", text: say("all_projects") }),
    ...projects.map((one) => make("option", { value: String(one.id), text: one.name, selected: String(one.id) === chosen })));
}

// --- the next item ---------------------------------------------------------------------------------------------------

const lasting = (doing) => tryUntil(doing, connection);

async function alone(doing) {
  if (busy) return;
  busy = true;
  document.body.classList.add("busy");
  clearTimeout(lookAgain);
  try {
    await doing();
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (error.kind === "login") leaveTo("/login");
    else warn(say("refused", { message: error.message || say("failed_offline") }));
  } finally {
    busy = false;
    document.body.classList.remove("busy");
  }
}

const next = () => alone(fetchNext);

async function fetchNext() {
  if (left(me.person.id)) await send(me.person.id, connection);
  const chosen = Number(localStorage.getItem(PROJECT));
  const wanted = projects.some((one) => one.id === chosen) ? { project: chosen } : {};
  const reply = await lasting(() => call("POST", "/api/next", wanted));
  today = reply.today;
  remaining = reply.left;
  drawProgress();
  older = [];
  if (!reply.task) return showRest(reply.rest);
  const changed = await lasting(() => guidelines(reply.task.project, reply.task.guidelines));
  showTask(reply.task);
  if (changed) warn(say("guidelines_new", { version: reply.task.guidelines }));
  else if (clock.sinceRest() > LONG_STRETCH) warn(say("long_stretch", { minutes: Math.round(clock.sinceRest() / 60) }));
}

// --- answering -------------------------------------------------------------------------------------------------------

function changed(what) {
  if (busy) return; // it is submitted already
  tell(what);
  keepDraft();
  const { task, view } = current;
  if (!task.labelled) saveSoon(task.item, view.answers(), task.guidelines, savedDraft);
}

function keepDraft() {
  const { task, view, before } = current;
  if (!task.labelled) keep({ person: me.person.id, item: task.item, answers: view.answers(), note: view.note(), seconds: before + clock.seconds() });
}

function savedDraft(how) {
  if (how === "login") leaveTo("/login");
  else if (how === "lost") {
    // Kept here for too long, the item went to somebody else.
    warn(say("too_late"));
    drop();
    next();
  } else connection(how);
}

function submit(event) {
  event.preventDefault();
  const { task, view, revealed, before } = current;
  if (revealed) return void next();
  const open = view.open();
  if (open.length) {
    view.toOpen();
    return tell(say("still_open", { questions: open.map((name) => say(`questions.${name}`)).join(", ") }));
  }
  alone(async () => {
    const seconds = Math.round((before + clock.seconds()) * 10) / 10;
    add(me.person.id, "PUT", `/api/items/${task.item}/labels`, { answers: view.answers(), seconds, guidelines: task.guidelines, note: view.note(), final: true });
    drop();
    const answer = await send(me.person.id, connection);
    if (answer?.known) return tellKnown(answer.known);
    await fetchNext();
  });
}

function tellKnown(known) {
  const right = current.view.tell(known);
  current.revealed = true; // Enter goes on
  const button = at("submit");
  button.firstElementChild.textContent = say("go_on");
  button.parentElement.replaceChildren(button);
  button.focus();
  tell(say(right ? "told_all" : "told_some"));
}

/** Takes back the last answer; where there is none, opens the label before, and the one before that. */
function undo() {
  if (busy || current?.revealed) return;
  const changing = current?.task.changing;
  if (current && !changing && current.view.clear()) return;
  alone(async () => {
    if (!changing) older = (await call("GET", "/api/mine?limit=20")).labels.filter((label) => label.changeable);
    const before = older.shift();
    if (!before) return warn(say("nothing_earlier"));
    showTask({ ...(await call("GET", `/api/items/${before.item}`)), changing: true });
  });
}

async function passOn(how) {
  if (!current || busy || current.task.changing || current.revealed) return;
  const { task } = current;
  const reason = await askReason(how);
  if (reason) giveBack(task, how, { reason }, how === "flag" ? "flagged_now" : "passed_on");
}

function decline() {
  if (current?.task.crisis && !current.task.labelled && !busy) giveBack(current.task, "decline", {}, "passed_on");
}

function giveBack(task, how, body, words) {
  alone(async () => {
    drop();
    add(me.person.id, "POST", `/api/items/${task.item}/${how}`, body);
    await send(me.person.id, connection);
    await fetchNext();
    tell(say(words));
  });
}

async function setDeclines(value) {
  me.person = await call("PATCH", "/api/me", { declines_crisis: value });
}

/** Before somebody logs out: what waits is sent, and nothing of theirs stays in this browser. */
async function finish() {
  await send(me.person.id, connection);
  drop();
}

// --- beginning -------------------------------------------------------------------------------------------------------

async function start() {
  me = await lasting(readMe);
  if (!me) return;
  if (!me.person.roles.some((role) => role !== "admin")) return void location.replace("/admin");
  today = me.today;
  at("menu").hidden = false;
  at("to-admin").hidden = !me.person.roles.includes("admin");
  startKeys({ current: () => current, busy: () => busy, undo, passOn, decline, back: () => current?.task.changing && next() });
  projects = (await lasting(() => call("GET", "/api/projects"))).projects;
  draw();
  if (localStorage.getItem(NOTICED) === noticed()) await fetchNext();
}

speak(draw);
startGuide();
startDialogs({ person: () => me.person, setDeclines: (value) => alone(() => setDeclines(value)), hold: clock.hold, finish });
at("to-admin").href = "/admin";
at("project").addEventListener("change", () => {
  localStorage.setItem(PROJECT, at("project").value);
  next();
});
alone(start);
