// Scripts that tests/view/test_browser.py puts behind the page: what they leave is read there.
function leave(value) {
  const answer = document.createElement("pre");
  answer.id = "answer";
  answer.textContent = JSON.stringify(value);
  document.body.append(answer);
}

// Everything that the tables say, step by step.
function readAll() {
  const cells = (id) => [...document.querySelectorAll(`#${id} tr`)].slice(1)
    .map((row) => [...row.cells].map((cell) => cell.textContent));
  const seen = [];
  for (let at = 0; at < frames.length; at++) {
    if (at === 0) show(0); else document.getElementById("next").click();
    seen.push({
      title: document.getElementById("operation-title").textContent,
      queue: [...document.querySelectorAll("#queue .chip")].map((chip) => Number(chip.textContent)),
      blocks: cells("blocks"),
      requests: cells("requests"),
    });
  }
  leave(seen);
}

// Keys, buttons and the picture: where each leads.
function walk() {
  const steps = [];
  const note = () => steps.push(frames[current].i);
  const press = (key, more) => {
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, ...more }));
    note();
  };
  const click = (name) => {
    document.querySelector(name).click();
    note();
  };
  press("ArrowRight"); press("ArrowRight"); press("ArrowLeft");
  press("r"); press("r"); press("R", { shiftKey: true });
  press("e"); press("P", { shiftKey: true }); press("h", { shiftKey: true }); press("v");
  press("End"); press("Home");
  click("#next"); click("#to-end"); click("#back"); click("#to-start");
  click("[aria-label='Next eviction']"); click("[aria-label='Previous hit']"); click("button.bad");
  const slider = document.getElementById("slider");
  slider.value = 5;
  slider.dispatchEvent(new Event("input"));
  note();
  const number = document.getElementById("number");
  number.value = 33;
  number.dispatchEvent(new Event("change"));
  note();
  const grid = shownColumns;
  const box = document.getElementById("time").getBoundingClientRect();
  const clientX = box.left + grid.left + (21 - grid.first) * grid.column + 3;
  const at = { clientX, clientY: box.top + grid.top + 3, bubbles: true };
  document.getElementById("time").dispatchEvent(new MouseEvent("click", at));
  note();
  leave(steps);
}

// What the frames of the stories show, once they are there.
function readStories() {
  setTimeout(() => leave([...document.querySelectorAll(".story")].map((story) => {
    const inner = story.querySelector("iframe")?.contentDocument;
    return inner ? {
      title: inner.getElementById("operation-title").textContent,
      differs: [...inner.querySelectorAll(".differs")].map((cell) => cell.textContent),
      fits: story.querySelector("iframe").clientHeight >= inner.body.scrollHeight,
    } : null;
  })), 1500);
}
