// The table of all rules: what does not hold all words that were typed is hidden.
document.addEventListener("DOMContentLoaded", () => {
  const field = document.getElementById("rule-filter");
  if (!field) return;
  const rows = [...document.querySelectorAll("#all-rules tbody tr")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    let shown = 0;
    rows.forEach((row, at) => {
      row.hidden = !words.every((word) => texts[at].includes(word));
      shown += !row.hidden;
    });
    document.getElementById("rule-count").textContent = `${shown} of ${rows.length} rules`;
  });
});
