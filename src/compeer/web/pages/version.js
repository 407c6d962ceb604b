// One version of a supporter's answer on the page: the line of reasoning above it, the reply, candidates, remarks.
// It is built once and then brought up to date in place while the answer streams in, so that what a reader has
// opened, selected or scrolled to stays.

import { languageOf, make, paragraphs, set } from "./parts.js";
import { felt, nameOf, say } from "./words.js";

const STEPS = ["history", "emotion", "strategy"];
const VERDICTS = [...STEPS, "response", "format"];
const opened = new WeakMap();

/** A foldable element that stays open when the page is drawn anew. */
function foldable(version, name, summary, ...children) {
  const open = opened.get(version) ?? opened.set(version, new Set()).get(version);
  const element = make("details", { class: name, open: open.has(name) }, summary, ...children);
  element.addEventListener("toggle", () => (element.open ? open.add(name) : open.delete(name)));
  return element;
}

/** What a step decided, in words. */
function decided(part, step) {
  if (part === "history") return nameOf("stage", step.stage);
  if (part === "strategy") return nameOf("strategy", step.strategy);
  return felt(step);
}

/** The answer as an element, with `update()` to bring it up to date. `again` is called to try a failed one again. */
export function versionView(version, { language, again }) {
  const wishes = ["strategy", "stage", "persona"].filter((field) => version.wish[field]).map((field) => nameOf(field, version.wish[field]));
  const asked = wishes.length ? make("span", { class: "asked", text: say("asked", { what: wishes.join(", ") }) }) : null;
  const marks = STEPS.map((part) => make("span", { class: "mark", "data-step": part }));
  const texts = STEPS.map(() => make("dd"));
  const steps = foldable(
    version, "steps",
    make("summary", {}, say("reasoning"), ...marks),
    make("dl", {}, ...STEPS.flatMap((part, index) => [make("dt", { text: say(`steps.${part}`) }), texts[index]])),
  );
  const reply = make("div", { class: "reply", dir: "auto" });
  const candidates = foldable(version, "candidates", make("summary"), make("ol"));
  const remarks = make("div", { class: "remarks" });
  const element = make(
    "div", { class: "version" },
    make("p", { class: "who" }, make("b", { text: say("supporter") }), asked),
    steps, reply, candidates, remarks,
  );

  function updateSteps() {
    const known = STEPS.some((part) => version.steps[part]);
    const thinking = !version.finished && !version.reply;
    const several = version.wish.best_of > 1 && !version.candidates.length;
    const doing = several ? say("thinking_several", { count: version.wish.best_of }) : say("thinking");
    const next = version.writing?.part ?? STEPS.find((part) => !version.steps[part]);
    steps.hidden = version.hidden || (!known && !thinking);
    STEPS.forEach((part, index) => {
      const now = thinking && part === next;
      const step = now ? null : version.steps[part];
      const said = step ? decided(part, step) : now ? `${doing}…` : "";
      set(marks[index], said && `${index ? " · " : ""}${said}`);
      marks[index].classList.toggle("now", now);
      set(texts[index], step ? step.text : now ? (version.writing?.text ?? "").replace(/\s*\[[^\]]*\]?\s*$/, "") : "");
    });
  }

  function updateReply() {
    const calm = version.replaced?.startsWith("crisis") ?? false;
    element.classList.toggle("calm", calm);
    const shown = `${version.reply}${version.finished}`;
    if (reply.dataset.shown !== shown) {
      reply.dataset.shown = shown;
      reply.lang = languageOf(version.reply, language);
      const guards = version.finished && version.passage && version.reply.endsWith(version.passage) ? version.passage : "";
      const own = version.reply.slice(0, version.reply.length - guards.length).trimEnd(); // the model's: never a link
      reply.replaceChildren(...(own ? paragraphs(own, false) : []), ...(guards ? paragraphs(guards, true) : []));
    }
    reply.classList.toggle("writing", !version.finished && version.reply !== "");
  }

  function updateCandidates() {
    const count = version.candidates.length;
    candidates.hidden = count === 0;
    if (!count) return;
    set(candidates.firstChild, say("candidates", { count }));
    const rank = ({ place, number }) => place ?? 100 + number; // those without a place come last
    const ranked = [...version.candidates].sort((one, other) => rank(one) - rank(other));
    candidates.lastChild.replaceChildren(...ranked.map((candidate) => candidateView(candidate, language)));
  }

  function updateRemarks() {
    const { failed, replaced, problems } = version;
    const texts = [];
    if (version.finished && replaced && !replaced.startsWith("crisis")) texts.push(say(replaced === "no reply" ? "no_reply" : "replaced"));
    if (version.finished && !replaced && problems.length) texts.push(say("problems", { what: problems.join("; ") }));
    if (failed) texts.push(say(`failed.${failed.kind}`, failed.details));
    remarks.replaceChildren(
      ...texts.map((text) => make("p", { text })),
      ...(failed ? [make("button", { type: "button", class: "again", text: say("again"), click: again })] : []),
    );
  }

  function update() {
    updateSteps();
    updateReply();
    updateCandidates();
    updateRemarks();
    element.setAttribute("aria-busy", String(!version.finished));
  }
  update();
  return { element, update };
}

function candidateView({ turn, score, place }, language) {
  const chosen = place === 1;
  const total = score?.total ?? null;
  const verdicts = VERDICTS.map((part) => [part, score?.parts[part]]).filter(([, sign]) => sign != null);
  return make(
    "li", { class: chosen ? "candidate chosen" : "candidate" },
    turn ? make("p", { class: "words", dir: "auto", lang: languageOf(turn.response, language), text: turn.response }) : null,
    turn ? make("p", { class: "soft", text: STEPS.map((part) => decided(part, turn[part])).join(" · ") }) : null,
    total === null ? make("p", { class: "soft", text: say(turn ? "unjudged" : "unreadable") }) : make("ul", { class: "verdicts" }, ...verdicts.map(verdictView)),
    make("p", { class: "sum" }, chosen ? make("b", { text: say("chosen") }) : null, total === null ? null : make("span", { text: say("total", { total }) })),
  );
}

function verdictView([part, sign]) {
  const good = sign > 0;
  return make(
    "li", { class: good ? "good" : "bad" },
    make("span", { "aria-hidden": "true", text: good ? "✓ " : "✗ " }), say(`steps.${part}`),
    make("span", { class: "unseen", text: `: ${say(good ? "accepted" : "rejected")}` }),
  );
}
