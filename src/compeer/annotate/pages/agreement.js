// The dashboard: how far annotators agree, who drifts from known answers, how labels are balanced, and what is left.

import { make } from "../parts.js";
import { call } from "./server.js";
import { table } from "./table.js";
import { answerText } from "./task.js";
import { inOrder, number, say } from "./words.js";

const QUESTION = (name) => say(`questions.${name}`);
const decimal = (value, digits = 3) => (value == null ? "–" : number(value, digits));
const share = (value) => (value == null ? "–" : `${number(value * 100, 1)} %`);
const interval = ({ low, high }) => (low == null ? "–" : `[${number(low, 3)}, ${number(high, 3)}]`);

export async function agreementView(page) {
  const project = page.project();
  if (!project) return make("p", { class: "soft", text: say("rest.no project") });
  const metrics = await call("GET", `/api/agreement?project=${project.id}`);
  const questions = inOrder(Object.keys(metrics.questions)).map((name) => [name, metrics.questions[name]]);
  return make("div", { class: "cards" }, progress(metrics), byQuestion(questions), pairs(metrics, questions), parts(questions), known(metrics), pace(metrics), balance(questions));
}

function progress({ stages, pace: { first_labels_left, adjudications_expected, hours_left } }) {
  const real = Object.entries(stages).filter(([stage]) => !["training", "gold", "deleted"].includes(stage));
  const all = real.reduce((sum, [, count]) => sum + count, 0);
  const closed = stages.closed ?? 0;
  const facts = [[first_labels_left, "first_left"], [adjudications_expected, "adjudications"], [hours_left == null ? null : number(hours_left, 1), "hours_left"]];
  return make("section", { class: "card", id: "progress-card" }, make("h3", { text: say("progress_title") }),
    make("p", { class: "large" }, make("b", { text: `${number(closed)} / ${number(all)}` }), ` ${say("closed")}`),
    make("progress", { max: String(all || 1), value: String(closed), "aria-label": say("progress_title") }),
    make("ul", { class: "facts" }, ...facts.filter(([value]) => value != null).map(([value, words]) => make("li", {}, make("b", { text: String(value) }), ` ${say(words)}`))),
    make("ul", { class: "facts soft" }, ...Object.entries(stages).filter(([stage]) => stage !== "closed").map(([stage, count]) => make("li", { text: `${number(count)} ${say(`stages.${stage}`)}` }))));
}

function byQuestion(questions) {
  const rows = questions.map(([name, one]) => [
    make("a", { href: `#disagreements/${name}`, text: QUESTION(name) }), number(one.items), share(one.percent), decimal(one.alpha.value), interval(one.alpha), number(one.without_consensus),
  ]);
  const card = table(say("agreement_title"), [say("question"), say("items"), say("percent"), say("alpha"), say("interval"), say("without")], rows);
  card.id = "agreement-card";
  return card;
}

function pairs(metrics, questions) {
  const rows = metrics.pairs.map((pair) => [pair.annotators.join(" · "), number(pair.items), ...questions.map(([name]) => decimal(pair.questions[name].kappa))]);
  const card = table(say("pairs_title"), [say("pair"), say("items"), ...questions.map(([name]) => QUESTION(name))], rows);
  card.id = "pairs-card";
  return card;
}

/** α by annotator, by source model and by week: one table each, folded. */
function parts(questions) {
  const tables = [["by_annotator", "annotator"], ["by_author", "author"], ["by_week", "week"]].map(([field, words]) => {
    const keys = [...new Set(questions.flatMap(([, one]) => Object.keys(one[field])))].sort();
    const rows = keys.map((key) => [key, number(Math.max(...questions.map(([, one]) => one[field][key]?.items ?? 0))), ...questions.map(([, one]) => decimal(one[field][key]?.alpha.value))]);
    return table(`${say("alpha")} ${say(`by.${words}`)}`, ["", say("items"), ...questions.map(([name]) => QUESTION(name))], rows);
  });
  return make("details", { class: "fold" }, make("summary", { text: say("breakdown") }), ...tables);
}

function known(metrics) {
  const rows = [["gold", metrics.gold], ["training", metrics.training]].flatMap(([kind, people]) =>
    Object.entries(people).map(([name, one]) => [
      name, say(kind), share(one.right), `[${number(one.low * 100)} %, ${number(one.high * 100)} %]`, number(one.answers), one.drifting ? make("b", { class: "warned", text: say("drifting") }) : "",
    ]));
  return table(say("gold_title"), [say("annotator"), "", say("right"), say("interval"), say("answers_count"), ""], rows);
}

function pace({ pace: { annotators } }) {
  const rows = Object.entries(annotators).map(([name, one]) => [name, number(one.labels), number(one.hours, 1), one.labels_an_hour == null ? "–" : number(one.labels_an_hour), number(one.last_week)]);
  return table(say("pace_title"), [say("annotator"), say("labels"), say("hours"), say("an_hour"), say("last_week")], rows);
}

/** How often each annotator gives each answer. */
function balance(questions) {
  const rows = questions.flatMap(([name, one]) =>
    Object.entries(one.balance).map(([who, counts]) => {
      const all = Object.values(counts).reduce((sum, count) => sum + count, 0);
      return [QUESTION(name), who, Object.entries(counts).map(([value, count]) => `${answerText({ True: true, False: false }[value] ?? (/^\d$/.test(value) ? Number(value) : value))} ${number((100 * count) / all)} %`).join(" · ")];
    }));
  return table(say("balance_title"), [say("question"), say("annotator"), ""], rows);
}
