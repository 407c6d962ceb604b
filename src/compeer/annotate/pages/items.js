// Items one by one, for admins: where labels differ, one item with all that was said on it, what was passed on, the log.

import { languageOf, make } from "../parts.js";
import { call } from "./server.js";
import { table } from "./table.js";
import { answerText, historyView, stepTitle } from "./task.js";
import { inOrder, moment, number, say } from "./words.js";

const itemLink = (item, from = "") => make("a", { href: `#item/${item}${from}`, text: String(item) });
const stageName = (stage) => say(`stages.${stage}`);

export async function disagreementsView(page, question, at = "1") {
  const project = page.project();
  if (!project) return make("p", { class: "soft", text: say("rest.no project") });
  const { questions } = await call("GET", `/api/agreement?project=${project.id}`);
  const chosen = question in questions ? question : inOrder(Object.keys(questions))[0];
  const reply = await call("GET", `/api/disagreements?project=${project.id}&question=${chosen}&page=${Number(at) || 1}`);
  const links = inOrder(Object.keys(questions)).map((name) => make("a", { href: `#disagreements/${name}`, text: say(`questions.${name}`), "aria-current": name === chosen ? "true" : null }));
  const rows = reply.rows.map((row) => [
    itemLink(row.item, `/${chosen}/${reply.page}`), row.author, stageName(row.stage), Object.entries(row.answers).map(([who, value]) => `${who}: ${answerText(value)}`).join(" · "),
    row.consensus == null ? say("no_consensus") : answerText(row.consensus), moment(row.at),
  ]);
  const shown = table(say("disagreements_count", { total: number(reply.total) }), [say("item"), say("source_model"), say("stage"), say("labels"), say("consensus"), say("when")], rows);
  const turn = (to, words) => (to >= 1 && to <= reply.pages ? make("a", { href: `#disagreements/${chosen}/${to}`, text: say(words) }) : null);
  return make("div", { class: "cards" }, make("nav", { class: "pills", "aria-label": say("question") }, ...links), shown,
    reply.pages > 1 ? make("nav", { class: "pills" }, turn(reply.page - 1, "later"), make("span", { class: "soft", text: say("page_of", reply) }), turn(reply.page + 1, "earlier")) : null);
}

/** All that is known of an item; with the question and page of the table it was opened from, the ways to its neighbours. */
export async function itemView(page, item, question, at) {
  const reply = await call("GET", `/api/items/${Number(item)}/everything`);
  const text = (words) => make("p", { class: "words", dir: "auto", lang: languageOf(words, reply.language), text: words });
  const names = inOrder([...reply.labels.flatMap((label) => Object.keys(label.answers)), ...Object.keys(reply.consensus ?? {})]);
  const answersOf = (answers) => names.map((name) => answerText(answers?.[name]));
  const rows = reply.labels.map((label) => [
    label.annotator, say(`roles.${label.role}`), ...answersOf(label.answers), label.note ?? "", number(label.guidelines), number(label.seconds), moment(label.at),
  ]);
  if (reply.consensus) rows.push([say("consensus"), "", ...answersOf(reply.consensus), "", "", "", ""]);
  const heads = [say("annotator"), say("role"), ...names.map((name) => say(`questions.${name}`)), say("note"), say("guidelines_version"), say("seconds"), say("when")];
  const passed = reply.passed.map((one) => [one.annotator, say(`passed_why.${one.why}`), one.reason ?? "", moment(one.at)]);
  const tags = [stageName(reply.stage), reply.author, reply.record, reply.dialogue, reply.crisis ? say("tag_crisis") : null].filter(Boolean);
  return make("div", { class: "cards" }, question ? await neighbours(reply, question, at) : null,
    make("section", { class: "card" }, make("h3", { text: say("item_title", reply) }), make("p", { class: "soft", text: tags.join(" · ") }), reply.stage === "flagged" ? settle(page, reply.item) : null),
    table(say("labels"), heads, rows),
    passed.length ? table(say("tabs.passed"), [say("annotator"), "", say("reason"), say("when")], passed) : null,
    make("section", { class: "card" }, make("h3", { text: say("conversation") }), make("div", { class: "talk" }, ...historyView(reply.history, reply.language))),
    reply.steps.length || reply.responses.length ? make("section", { class: "card" }, ...reply.steps.flatMap((step) => [make("h4", {}, ...stepTitle(step)), text(step.text)]),
      ...reply.responses.flatMap((one) => [make("h4", { text: [say(`answers.${one.name}`), one.model].filter(Boolean).join(" · ") }), text(one.text)])) : null);
}

async function neighbours({ item, project }, question, at) {
  const { rows } = await call("GET", `/api/disagreements?project=${project}&question=${encodeURIComponent(question)}&page=${Number(at)}`);
  const place = rows.findIndex((row) => row.item === item);
  const way = (row, words) => (row ? make("a", { href: `#item/${row.item}/${question}/${at}`, text: say(words) }) : null);
  return make("nav", { class: "pills" }, make("a", { href: `#disagreements/${question}/${at}`, text: say("to_list", { question: say(`questions.${question}`) }) }),
    way(rows[place - 1], "before"), way(place < 0 ? null : rows[place + 1], "after"));
}

/** Back into the queue, or out of it. */
function settle(page, item) {
  const button = (keep) => make("button", { type: "button", text: say(keep ? "keep" : "drop"), class: keep ? null : "danger", click: async () => {
    await page.attempt(() => call("POST", `/api/items/${item}/settle`, { keep }));
    page.draw();
  } });
  return make("div", { class: "buttons" }, button(true), button(false));
}

export async function passedView(page) {
  const project = page.project();
  if (!project) return make("p", { class: "soft", text: say("rest.no project") });
  const { rows } = await call("GET", `/api/passed?project=${project.id}`);
  const waits = (row) => row.why === "flagged" && row.stage === "flagged";
  const sorted = rows.toSorted((one, other) => Number(waits(other)) - Number(waits(one)) || other.at - one.at);
  return make("div", { class: "cards" }, table(say("tabs.passed"), [say("item"), say("annotator"), "", say("reason"), say("stage"), say("when"), ""],
    sorted.map((row) => [itemLink(row.item), row.annotator, say(`passed_why.${row.why}`), row.reason ?? "", stageName(row.stage), moment(row.at), waits(row) ? settle(page, row.item) : ""])));
}

/** What an event holds, in one line; texts are kept elsewhere, and their ids and hashes say nothing to a reader. */
function eventText(body) {
  const plain = (name, value) => (["expires", "until"].includes(name) && value ? moment(value) : Array.isArray(value) ? value.join(", ") : typeof value === "object" && value ? JSON.stringify(value) : String(value ?? "–"));
  return Object.entries(body).filter(([, value]) => !value?.hash).map(([name, value]) => `${name}: ${plain(name, value)}`).join(" · ");
}

export async function auditView(page, before) {
  const { rows } = await call("GET", `/api/audit?limit=100${Number(before) ? `&before=${Number(before)}` : ""}`);
  const last = rows.at(-1)?.seq;
  return make("div", { class: "cards" }, table(say("tabs.audit"), ["", say("when"), say("annotator"), "", say("item"), ""],
    rows.map((row) => [String(row.seq), moment(row.at), row.actor ?? "–", row.kind, row.item ? itemLink(row.item) : "", make("span", { class: "soft", text: eventText(row.body) })])),
    last > 1 ? make("nav", { class: "pills" }, make("a", { href: `#audit/${last}`, text: say("earlier") })) : null);
}
