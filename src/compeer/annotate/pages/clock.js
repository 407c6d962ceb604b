// Time on an item, kept quietly: it stands still while the page is hidden, while a pause is on, and when nothing has
// been touched for a while.

const IDLE = 120_000;

/** A clock: `seconds()` on this item, `sinceRest()` since the last pause; `restart()` for a new item, `hold()` to pause. */
export function startClock() {
  let item = 0, stretch = 0, last = performance.now(), touched = last, held = false;

  function count(visible = !document.hidden) {
    const now = performance.now();
    const worked = !held && visible ? Math.max(0, Math.min(now, touched + IDLE) - last) : 0;
    item += worked;
    stretch += worked;
    last = now;
  }
  function touch() {
    count();
    touched = performance.now();
  }
  for (const event of ["keydown", "pointerdown", "wheel", "touchmove"]) document.addEventListener(event, touch, { passive: true, capture: true });
  document.addEventListener("visibilitychange", () => {
    count(document.hidden); // `hidden` has changed already: what is counted is the time before
    if (!document.hidden) touched = performance.now();
  });
  return {
    seconds: () => (count(), item / 1000),
    sinceRest: () => (count(), stretch / 1000),
    restart() {
      touch();
      item = 0;
    },
    hold(on) {
      touch();
      held = on;
      stretch = 0;
    },
  };
}
