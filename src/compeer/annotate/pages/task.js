// One item in front of one person: the conversation, the steps with their decisions, the responses, the questions.
// Every question is a group of radio buttons, so that it works with a mouse, a finger, a keyboard or a screen reader;
// a mark shows the question that the number keys answer.

import { languageOf, make } from "../parts.js";
import { decided, say } from "./words.js";

const LETTERS = { t: true, y: true, f: false, n: false };

/** The view of a task; `changed(what)` is called after every answer, with words that say what was done. */
export function taskView(task, changed) {
  const answers = { ...task.answers };
  const given = Object.keys(answers); // in the order in which they were given
  const groups = new Map();
  let now = 0; // the place of the marked question; after the last one it is the button's turn

  const form = make("form", { class: "questions", id: "questions" }, head(task), ...questions(task, group), remarks(task));
  const said = make("div", { class: "said", role: "region", tabindex: "0", "aria-label": say("conversation"), id: "said" }, ...historyView(task.history, task.language));
  const remark = form.querySelector("#remark");
  remark.value = task.note ?? "";
  if (task.changing) mark(0);
  else markOpen();

  /** A question below what it is about; one that is not asked, because both labels agree, only shows the labels. */
  function group(name, title, ...about) {
    const question = task.questions.find((one) => one.name === name);
    const others = task.others.length ? make("ul", { class: "others-said" }, ...task.others.map((label, index) => saidBy(index, answerText(label.answers[name])))) : null;
    const heading = make("h3", { id: `name-${name}` }, ...title);
    if (!question) return make("section", { class: `question settled ${name}` }, heading, ...about, others);
    const choices = question.values.map((value, index) => choice(question, value, index));
    const element = make("section", { class: `question ${name}`, role: "radiogroup", "aria-labelledby": `name-${name}` },
      heading, ...about, others, make("div", { class: `choices ${question.ordered ? "scale" : ""}` }, ...choices));
    groups.set(name, { element, question });
    for (const event of ["focusin", "pointerdown"]) element.addEventListener(event, () => mark([...groups.keys()].indexOf(name)));
    return element;
  }

  function choice({ name, values }, value, index) {
    const number = typeof value === "number";
    const input = make("input", { type: "radio", name, value: String(value), checked: answers[name] === value });
    // Arrow keys inside a group pass through its answers: the mark waits there. A click is meant, and the mark goes on.
    input.addEventListener("change", () => answer(name, values[index], !input.matches(":focus-visible")));
    const words = number ? null : make("span", { text: say(`answers.${value}`) });
    return make("label", { class: `choice ${value === false ? "no" : ""}` }, input, make("kbd", { text: String(number ? value : index + 1) }), words);
  }

  function mark(place) {
    now = Math.max(0, Math.min(place, groups.size));
    [...groups.values()].forEach(({ element }, index) => element.classList.toggle("now", index === now));
    form.classList.toggle("complete", open().length === 0);
  }

  function open() {
    return [...groups.keys()].filter((name) => !(name in answers));
  }

  /** Marks the first question without an answer after a place; the end where all have one. */
  function markOpen(after = -1) {
    const names = [...groups.keys()];
    const next = open().find((name) => names.indexOf(name) > after) ?? open()[0];
    mark(next ? names.indexOf(next) : names.length);
    return next;
  }

  function answer(name, value, onwards) {
    answers[name] = value;
    if (given.includes(name)) given.splice(given.indexOf(name), 1);
    given.push(name);
    const { element, question } = groups.get(name);
    element.querySelectorAll("input")[question.values.indexOf(value)].checked = true;
    const what = `${say(`questions.${name}`)}: ${answerText(value)}`;
    if (onwards) {
      const focused = document.activeElement?.matches(":focus-visible") && element.contains(document.activeElement);
      const next = markOpen([...groups.keys()].indexOf(name));
      if (focused && next) groups.get(next).element.querySelector("input").focus();
      reveal();
    }
    form.classList.toggle("complete", open().length === 0);
    changed(open().length ? say("next_open", { what, question: say(`questions.${[...groups.keys()][now] ?? open()[0]}`) }) : say("all_answered", { what }));
  }

  /** Brings the marked question into view, where the page is too small for all. */
  const reveal = () => ([...groups.values()][now]?.element ?? form.lastElementChild).scrollIntoView({ block: "nearest" });

  return {
    element: make("article", { class: `item of-${task.task}`, "aria-labelledby": "item-name" }, said, form),
    form, said, remark, open,
    answers: () => ({ ...answers }),
    note: () => remark.value.trim(),
    /** Answers the marked question by a key; false where the key says nothing. */
    press(key) {
      const current = [...groups.values()][now];
      if (!current || !/^[0-9tyfn]$/.test(key)) return false;
      const { name, values } = current.question;
      const value = typeof values[0] === "number" ? Number(key) : typeof values[0] === "boolean" && key in LETTERS ? LETTERS[key] : values[Number(key) - 1];
      if (!values.includes(value)) return false;
      answer(name, value, true);
      return true;
    },
    move(by) {
      mark(now + by);
      reveal();
    },
    toOpen() {
      markOpen();
      reveal();
    },
    /** Takes back the answer that was given last; false where there is none. */
    clear() {
      const name = given.pop();
      if (!name) return false;
      delete answers[name];
      for (const input of groups.get(name).element.querySelectorAll("input")) input.checked = false;
      mark([...groups.keys()].indexOf(name));
      reveal();
      changed(say("taken_back", { question: say(`questions.${name}`) }));
      return true;
    },
    /** Shows the right answers of a training item beside those given; true if all are the same. */
    tell(known) {
      for (const [name, { element }] of groups) {
        const right = known[name] === answers[name];
        const what = right ? say("told_right") : say("told_wrong", { answer: answerText(known[name]) });
        element.append(make("p", { class: `told ${right ? "good" : "bad"}`, text: `${right ? "✓" : "✗"} ${what}` }));
        for (const input of element.querySelectorAll("input")) input.disabled = true;
      }
      return [...groups.keys()].every((name) => known[name] === answers[name]);
    },
  };
}

/** An answer in words. */
export function answerText(value) {
  if (value === undefined || value === null) return "–";
  return typeof value === "number" ? String(value) : say(`answers.${value}`);
}

/** A conversation as elements, with its pictures and clips. */
export function historyView(history, language) {
  return history.map((one) => make("div", { class: `utterance by-${one.speaker}` }, make("p", { class: "who" }, make("b", { text: say(one.speaker) })),
    ...one.media.map(mediaView), one.text ? text(one.text, language, "words") : null));
}

/** A step's name and what it decided. */
export const stepTitle = (step) => [make("span", { text: say(`questions.${step.name}`) }), " ", make("span", { class: "decision", text: decided(step.decisions) })];

const text = (words, language, kind) => make("p", { class: kind, dir: "auto", lang: languageOf(words, language), text: words });

const saidBy = (index, words) => make("li", { dir: "auto" }, make("b", { text: say("label_of", { letter: "AB"[index] }) }), " ", words);

function mediaView({ kind, url }, index) {
  if (kind === "image") return make("img", { src: url, alt: say("picture", { number: index + 1 }) });
  return make(kind, { src: url, controls: true, preload: "metadata", "aria-label": say("clip", { number: index + 1 }) });
}

function questions(task, group) {
  if (task.task === "rating") return task.questions.map(({ name }) => group(name, [say(`questions.${name}`)], make("p", { class: "step-text soft", text: say(`asks.${name}`) })));
  const steps = task.steps.map((step) => group(step.name, stepTitle(step), text(step.text, task.language, "step-text")));
  const shown = task.responses.map((words, index) => make("div", { class: "response" }, make("h4", { text: say(index ? "answers.second" : "answers.first") }), text(words, task.language, "words")));
  return [...steps, group("preference", [say("questions.preference")], make("div", { class: "responses" }, ...shown))];
}

function head(task) {
  const tags = [
    task.changing && ["changing", say("tag_changing")],
    task.kind === "training" && ["training", say("tag_training")],
    task.kind === "adjudication" && ["adjudication", say("tag_adjudication")],
    task.crisis && ["crisis", say("tag_crisis")],
  ].filter(Boolean);
  const why = ["training", "adjudication"].includes(task.kind) ? make("p", { class: "soft", text: say(`${task.kind}_why`) }) : null;
  return make("div", { class: "item-head" },
    make("h2", { id: "item-name", tabindex: "-1" }, make("span", { text: say(`tasks.${task.task}`) }), ...tags.map(([kind, words]) => make("span", { class: `tag ${kind}`, text: words }))), why);
}

function remarks(task) {
  const others = task.others.map((label, index) => (label.note ? saidBy(index, label.note) : null)).filter(Boolean);
  return make("div", { class: "remark" }, others.length ? make("ul", { class: "others-said" }, ...others) : null,
    make("label", { for: "remark" }, say("remark"), " ", make("kbd", { text: "c" })),
    make("textarea", { id: "remark", rows: 1, maxlength: 4000, dir: "auto", placeholder: say("remark_hint") }));
}
