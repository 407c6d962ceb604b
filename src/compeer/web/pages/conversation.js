// A conversation as the page keeps it, in this tab's session storage and nowhere else.
//
//   {started, wish, turns: [{seeker: {text, picture}, before, versions: [version], kept}]}
//
// A turn is what the seeker wrote and one or more versions of the supporter's answer, of which one is kept and goes on.
// `before` is the guard's state that the server gave with the turn before; the page only hands it back.

const PLACE = "compeer.conversation";
const STEPS = ["history", "emotion", "strategy"];
export const FREE = { strategy: "", stage: "", persona: "", best_of: 1 };

export const empty = () => ({ started: new Date().toISOString(), wish: { ...FREE }, turns: [] });

/** The conversation of this tab, or a new one. An answer that had not ended when the page was left says so. */
export function load() {
  let found;
  try {
    found = JSON.parse(sessionStorage.getItem(PLACE));
  } catch {
    found = null;
  }
  if (!found?.turns) return empty();
  for (const version of found.turns.flatMap((turn) => turn.versions))
    if (!version.finished) end(version, { kind: "interrupted", details: {} });
  return found;
}

/** Keeps the conversation across a reload; false if the browser has no room for it. */
export function keep(conversation) {
  try {
    sessionStorage.setItem(PLACE, JSON.stringify(conversation));
    return true;
  } catch {
    sessionStorage.removeItem(PLACE);
    return false;
  }
}

export const forget = () => sessionStorage.removeItem(PLACE);

// --- turns -----------------------------------------------------------------------------------------------------------

/** A new turn of the seeker at the end of the conversation. */
export function addTurn(conversation, text, picture) {
  const last = conversation.turns.at(-1);
  const turn = { seeker: { text, picture }, before: last ? stateAfter(last) : "", versions: [], kept: 0 };
  conversation.turns.push(turn);
  return turn;
}

/** A version of the answer that nothing has been heard of yet, in the place of `instead` or as one more. */
export function addVersion(turn, wish, instead = turn.versions.length) {
  const version = {
    wish, steps: {}, writing: null, reply: "", candidates: [], risk: "none", replaced: null, passage: "",
    hidden: false, problems: [], state: "", failed: null, finished: false,
  };
  turn.versions[instead] = version;
  turn.kept = instead;
  return version;
}

const stateAfter = (turn) => turn.versions[turn.kept]?.state || turn.before;

/** Takes in one chunk of the stream. */
export function hear(version, chunk) {
  const delta = chunk.choices?.[0]?.delta ?? {};
  const news = chunk.compeer ?? {};
  if (news.retracted) version.reply = ""; // its content is a blank line, for clients that cannot take words back
  else if (delta.content) version.reply += delta.content;
  if (news.part) {
    const sofar = version.writing?.part === news.part ? version.writing.text : "";
    version.writing = { part: news.part, text: (sofar + delta.reasoning_content).trimStart() };
  }
  if (news.step) {
    const { part, ...step } = news.step;
    version.steps[part] = step;
    version.writing = null;
  }
  if (news.candidate) version.candidates.push(news.candidate);
  if (chunk.choices?.[0]?.finish_reason && "state" in news) {
    const { turn, risk, hide_reasoning: hidden, replaced, passage = "", state, problems, dropped = [] } = news;
    Object.assign(version, { risk, hidden, replaced, passage, state, problems: [...problems, ...dropped] });
    for (const part of STEPS) if (turn?.[part]) version.steps[part] = turn[part];
  }
}

/** No more will be heard. What the guard hides or has replaced is not kept either. */
export function end(version, failed = null) {
  Object.assign(version, { finished: true, failed, writing: null });
  if (version.hidden) version.steps = {};
  if (version.hidden || version.replaced) version.candidates = [];
}

/** What the server is asked for a version of the last turn. */
export function request(conversation, version, supporter) {
  const messages = [];
  for (const turn of conversation.turns) {
    const { text, picture } = turn.seeker;
    const parts = [{ type: "text", text }, { type: "image_url", image_url: { url: picture } }];
    messages.push({ role: "user", content: picture ? parts.filter((part) => part.text !== "") : text });
    const said = turn.versions[turn.kept];
    if (said !== version && said?.reply) messages.push({ role: "assistant", content: said.reply });
  }
  const { best_of, ...control } = version.wish;
  const wanted = Object.fromEntries(Object.entries(control).filter(([, value]) => value));
  const before = conversation.turns.at(-1).before;
  return {
    model: supporter.id, messages, show_reasoning: true, ...wanted,
    ...(best_of > 1 ? { best_of } : {}), ...(before ? { state: before } : {}),
  };
}

/** The seeker's emotion at each turn where it may be shown: {turn, emotion, intensity, value} with value in −5 … 5. */
export function feelings(conversation) {
  const sign = { positive: 1, negative: -1 };
  return conversation.turns.flatMap((turn, index) => {
    const step = turn.versions[turn.kept]?.steps.emotion;
    if (!step) return [];
    return [{ turn: index + 1, emotion: step.emotion, intensity: step.intensity, value: (sign[step.sentiment] ?? 0) * step.intensity }];
  });
}

// --- a copy for the seeker -------------------------------------------------------------------------------------------

/** The conversation as JSON: everything that the page shows, and nothing of what only server and page need. */
export function asJson(conversation, supporter, notice) {
  const turns = conversation.turns.map(({ seeker, versions, kept }) => ({
    seeker,
    kept,
    versions: versions.map(({ wish, steps, reply, candidates, risk, replaced, problems, failed }) => (
      { wish, steps, reply, candidates, risk, replaced, problems, failed }
    )),
  }));
  return JSON.stringify({ made_by: "compeer", notice, model: supporter?.id ?? null, started: conversation.started, turns }, null, 2);
}

/** The conversation as Markdown, to be read; pictures are named and not included. */
export function asMarkdown(conversation, supporter, words) {
  const plain = (text) => text.replace(/[\\`*_[\]<>#|~]/g, "\\$&");
  const quoted = (text) => plain(text).split("\n").map((line) => `> ${line}`).join("\n");
  const lines = [`# ${words("conversation")}`, "", `${conversation.started}, ${plain(supporter?.id ?? "compeer")}`, "", `*${words("notice")}*`];
  for (const turn of conversation.turns) {
    lines.push("", `**${words("you")}**`, "", quoted(turn.seeker.text));
    if (turn.seeker.picture) lines.push(">", `> (${words("picture_sent")})`);
    turn.versions.forEach((version, index) => {
      const kept = turn.versions.length > 1 && index === turn.kept ? ` (${words("kept")})` : "";
      lines.push("", `**${words("supporter")}**${kept}`, "");
      for (const part of STEPS) {
        const step = version.steps[part];
        if (step) lines.push(`- ${words(`steps.${part}`)}: ${plain(step.text)} \\[${decision(part, step)}\\]`);
      }
      if (Object.keys(version.steps).length) lines.push("");
      if (version.reply) lines.push(quoted(version.reply));
    });
  }
  return `${lines.join("\n")}\n`;
}

function decision(part, step) {
  return { history: step.stage, emotion: `${step.sentiment}, ${step.emotion}, ${step.intensity}`, strategy: step.strategy }[part];
}
