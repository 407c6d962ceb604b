// The chat page: what happens when the seeker writes, steers, redoes, saves or deletes.
// The conversation (conversation.js) is the truth; drawing follows it.

import { addTurn, addVersion, asJson, asMarkdown, empty, end, feelings, forget, hear, keep, load, request } from "./conversation.js";
import { curve, make, readPicture } from "./parts.js";
import { Failure, converse, readSupporter, useKey } from "./supporter.js";
import { versionView } from "./version.js";
import { choose, nameOf, say, valuesOf } from "./words.js";

const LANGUAGE = "compeer.language";
const at = (id) => document.getElementById(id);
const log = at("log"), message = at("message"), send = at("send"), redo = at("redo"), panel = at("panel");

let conversation = load();
let supporter = null;
let stream = null; // what can stop the answer that is coming in; null when none is
let picture = null;
let followed = 0; // how far down the page last followed the newest turn
let live = new Map(); // each version that is drawn, to the view that shows it

// --- drawing ---------------------------------------------------------------------------------------------------------

function drawWords() {
  for (const element of document.querySelectorAll("[data-words]")) element.textContent = say(element.dataset.words);
  document.documentElement.lang = at("language").value;
  message.placeholder = say("placeholder");
  at("picture-seen").alt = say("picture_sent");
  const choices = (field) => [["", say("free")], ...valuesOf(field).map((value) => [value, nameOf(field, value)])];
  for (const field of ["strategy", "stage", "persona"]) options(at(field), choices(field), conversation.wish[field]);
  const counts = [2, 4, 8].filter((count) => count <= (supporter?.max_best_of ?? 8));
  const several = counts.map((count) => [String(count), say("best_of_count", { count })]);
  options(at("best-of"), [["1", say("best_of_none")], ...several], String(conversation.wish.best_of));
  options(at("redo-strategy"), choices("strategy"), at("redo-strategy").value);
  drawSupporter();
  drawLog();
}

function options(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, text]) => make("option", { value, text, selected: value === chosen })));
}

function drawSupporter() {
  if (!supporter) return;
  const language = say("speaks", { language: say(`languages.${supporter.language}`).replace("languages.", "") });
  at("model").textContent = supporter.id;
  at("speaks").textContent = language;
  at("guard-off").hidden = at("short-guard-off").hidden = supporter.guard;
  at("kept-there").hidden = !supporter.keeps;
  at("attach").hidden = !supporter.sees;
}

function drawLog() {
  live = new Map();
  log.replaceChildren(...conversation.turns.map((turn, index) => turnView(turn, index === conversation.turns.length - 1)));
  at("welcome").classList.toggle("small", conversation.turns.length > 0);
  drawAround();
}

/** What depends on the conversation but stands beside it. */
function drawAround() {
  const last = conversation.turns.at(-1);
  const version = last?.versions[last.kept];
  const redoing = Boolean(stream) && last?.versions.length > 1; // who redoes by keyboard stays where they are
  redo.hidden = !redoing && (!version?.finished || Boolean(version.failed) || (version.replaced ?? "").startsWith("crisis"));
  at("curve").replaceChildren(curve(feelings(conversation)));
  send.textContent = say(stream ? "stop" : "send");
  send.classList.toggle("stop", Boolean(stream));
  for (const id of ["save-json", "save-markdown", "delete"]) at(id).disabled = conversation.turns.length === 0;
}

function turnView(turn, newest) {
  const { text, picture: seen } = turn.seeker;
  const said = make("div", { class: "seeker" }, make("p", { class: "who" }, make("b", { text: say("you") })),
    seen ? make("img", { src: seen, alt: say("picture_sent") }) : null, text ? make("p", { class: "words", dir: "auto", text }) : null);
  const views = turn.versions.map((version, index) => {
    const view = versionView(version, { language: supporter?.language ?? "en", again: () => answer(turn, version.wish, index) });
    live.set(version, view);
    return view.element;
  });
  if (views.length < 2) return make("li", { class: "turn" }, said, ...views);
  if (newest) {
    views.forEach((view, index) => view.append(keepButton(turn, index)));
    views.forEach((view, index) => view.classList.toggle("let-go", index !== turn.kept));
    return make("li", { class: "turn" }, said, make("div", { class: "versions", role: "group", "aria-label": say("compare") }, ...views));
  }
  const others = views.filter((_, index) => index !== turn.kept);
  return make("li", { class: "turn" }, said, views[turn.kept],
    make("details", { class: "others" }, make("summary", { text: say("others", { count: others.length }) }), ...others));
}

function keepButton(turn, index) {
  const kept = index === turn.kept;
  const click = () => {
    if (stream) return;
    turn.kept = index;
    save();
    drawLog();
    log.querySelectorAll(".keep")[index].focus();
  };
  return make("button", { type: "button", class: "keep", "aria-pressed": String(kept), text: say(kept ? "kept" : "keep"), click });
}

/** Follows the newest turn, but never past its beginning: a long reply is read from its start. Who scrolls up stays. */
function follow() {
  if (window.scrollY < followed - 30) return;
  const top = (log.lastElementChild?.getBoundingClientRect().top ?? 0) - document.querySelector(".top").offsetHeight;
  const room = document.documentElement.scrollHeight - window.innerHeight - window.scrollY;
  const down = Math.min(room, top - 12);
  if (down > 0) window.scrollBy(0, down);
  followed = window.scrollY;
}

function save() {
  at("error").textContent = keep(conversation) ? "" : say("full");
}

// --- talking ---------------------------------------------------------------------------------------------------------

async function answer(turn, wish, instead) {
  if (stream || !supporter) return;
  const stop = new AbortController();
  stream = stop;
  const version = addVersion(turn, wish, instead);
  save();
  drawLog();
  followed = 0;
  follow();
  at("status").textContent = say("writing");
  let failed = null;
  let due = false;
  const heard = (chunk) => {
    hear(version, chunk);
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      live.get(version)?.update();
      follow();
    });
  };
  try {
    await converse(request(conversation, version, supporter), heard, stop.signal);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    failed = { kind: error.kind, details: error.details };
    if (error.kind === "key") {
      failed = { kind: "refused", details: { message: say("key_wanted") } };
      at("key-dialog").showModal();
    }
  } finally {
    stream = null;
    end(version, failed);
  }
  drawAround();
  if (!conversation.turns.includes(turn)) return; // deleted while it was coming in
  save();
  live.get(version)?.update();
  follow();
  at("status").textContent = failed ? say(`failed.${failed.kind}`, failed.details) : `${say("supporter")}: ${version.reply}`;
}

function submit() {
  if (stream) {
    stream.abort();
    return;
  }
  const text = message.value.trim();
  if (!text && !picture) return;
  if (!supporter) {
    at("error").textContent = say("unsent");
    return;
  }
  const turn = addTurn(conversation, text, picture);
  message.value = "";
  showPicture(null);
  message.focus();
  answer(turn, { ...conversation.wish });
}

/** On a phone the settings lie over the conversation. */
function unfold(open) {
  panel.classList.toggle("open", open);
  at("panel-toggle").setAttribute("aria-expanded", String(open));
  at("panel-toggle").textContent = say(open ? "panel_close" : "panel");
  at("panel-toggle").focus();
}

function showPicture(address) {
  picture = address;
  at("picture").hidden = !address;
  if (address) at("picture-seen").src = address;
  else at("picture-seen").removeAttribute("src");
  at("picture-file").value = "";
}

async function meet() {
  try {
    supporter = await readSupporter();
    conversation.wish.best_of = Math.min(conversation.wish.best_of, supporter.max_best_of);
    at("error").textContent = "";
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (error.kind === "key") at("key-dialog").showModal();
    else at("error").textContent = say("unsent");
    return;
  }
  drawWords();
}

// --- a copy, and deleting --------------------------------------------------------------------------------------------

function download(text, type, ending) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: `compeer-${conversation.started.slice(0, 16).replace(/[T:]/g, "-")}.${ending}` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function remove() {
  stream?.abort();
  unfold(false);
  const { wish } = conversation;
  conversation = { ...empty(), wish };
  forget();
  drawLog();
  at("status").textContent = say("deleted");
  message.focus();
}

// --- what the seeker does --------------------------------------------------------------------------------------------

at("say").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
message.addEventListener("keydown", (event) => {
  // While an input method is composing (Chinese, say), Enter chooses a word; on a touch keyboard it starts a line.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || matchMedia("(pointer: coarse)").matches) return;
  event.preventDefault();
  if (!stream) submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (panel.classList.contains("open")) unfold(false);
  else stream?.abort();
});
redo.addEventListener("submit", (event) => {
  event.preventDefault();
  const turn = conversation.turns.at(-1);
  answer(turn, { ...turn.versions[turn.kept].wish, strategy: at("redo-strategy").value });
});
for (const [id, field, read] of [["strategy", "strategy", String], ["stage", "stage", String], ["persona", "persona", String], ["best-of", "best_of", Number]])
  at(id).addEventListener("change", () => {
    conversation.wish[field] = read(at(id).value);
    save();
  });
at("language").addEventListener("change", () => {
  sessionStorage.setItem(LANGUAGE, choose(at("language").value));
  drawWords();
});
at("panel-toggle").addEventListener("click", () => unfold(!panel.classList.contains("open")));
at("picture-file").addEventListener("change", async () => {
  const [file] = at("picture-file").files;
  if (!file) return;
  try {
    showPicture(await readPicture(file));
    at("error").textContent = "";
  } catch {
    showPicture(null);
    at("error").textContent = say("picture_bad");
  }
});
at("picture-off").addEventListener("click", () => {
  showPicture(null);
  message.focus();
});
at("save-json").addEventListener("click", () => download(asJson(conversation, supporter, say("notice")), "application/json", "json"));
at("save-markdown").addEventListener("click", () => download(asMarkdown(conversation, supporter, say), "text/markdown", "md"));
at("delete").addEventListener("click", () => at("delete-dialog").showModal());
at("delete-dialog").addEventListener("close", () => {
  if (at("delete-dialog").returnValue === "yes") remove();
  at("delete-dialog").returnValue = "";
});
at("key-dialog").addEventListener("close", () => {
  if (at("key-dialog").returnValue !== "yes" || !at("key").value) return;
  useKey(at("key").value);
  at("key").value = "";
  meet();
});

at("language").value = choose(sessionStorage.getItem(LANGUAGE) ?? navigator.language.slice(0, 2));
drawWords();
follow();
meet();
