"use strict";
// The page of `kvspec check --html`: each story is drawn by the page of `kvspec view`, in a frame that
// is made when it is looked at. The page stands here once, the stories as data where they belong.

const shell = JSON.parse(document.getElementById("view").textContent);

function draw(story) {
  const details = story.closest("details");
  if (!details.open || story.querySelector("iframe")) return;
  const frame = document.createElement("iframe");
  frame.title = "The story, step by step";
  frame.addEventListener("load", () => {
    const body = frame.contentDocument.body;
    const fit = () => { frame.style.height = `${body.scrollHeight + 4}px`; };
    new frame.contentWindow.ResizeObserver(fit).observe(body);
    fit();
  });
  const data = story.querySelector("script").textContent;
  frame.srcdoc = shell.replace("@@STORY@@", () => data);
  story.append(frame);
}

for (const story of document.querySelectorAll(".story")) {
  story.closest("details").addEventListener("toggle", () => draw(story));
  draw(story);
}

// A rule in a closed chapter is found by its address.
function openTarget() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  if (target) target.scrollIntoView();
}
window.addEventListener("hashchange", openTarget);
openTarget();
