"use strict";
// Sorting and filtering of the op table. The page is complete without it: this only reorders and hides rows.
(function () {
  var table = document.getElementById("op-table");
  var body = table.tBodies[0];
  var rows = Array.prototype.map.call(body.rows, function (row, index) {
    return {
      row: row,
      index: index,
      match: row.dataset.m,
      values: row.dataset.v.split(" ").map(Number),
      text: row.cells[1].textContent,
      search: (row.textContent + " " + row.title).toLowerCase(),
    };
  });
  var controls = document.querySelector(".controls");
  var filter = document.getElementById("filter");
  var boxes = Array.prototype.slice.call(controls.querySelectorAll("input[name=match]"));
  var shown = document.getElementById("shown");
  var headers = Array.prototype.slice.call(table.tHead.rows[0].cells);

  function show() {
    var words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    var kinds = {};
    boxes.forEach(function (box) { kinds[box.value] = box.checked; });
    var count = 0;
    rows.forEach(function (item) {
      var visible = kinds[item.match] !== false && words.every(function (word) { return item.search.includes(word); });
      item.row.hidden = !visible;
      count += visible;
    });
    shown.textContent = count === rows.length ? count + " rows" : count + " of " + rows.length + " rows";
  }

  function keyOf(header, column) {
    if (column === 0) return function (item) { return item.match; };
    if (header.dataset.sort === "text") return function (item) { return item.text; };
    var index = Number(header.dataset.sort);
    return function (item) { return item.values[index]; };
  }

  function sort(header, column) {
    // Text starts at A, figures start at the largest.
    var first = header.dataset.sort === "text" ? "ascending" : "descending";
    var other = first === "ascending" ? "descending" : "ascending";
    var order = header.getAttribute("aria-sort") === first ? other : first;
    var sign = order === "ascending" ? 1 : -1;
    var key = keyOf(header, column);
    rows.sort(function (a, b) {
      var left = key(a), right = key(b);
      return left < right ? -sign : left > right ? sign : a.index - b.index;
    });
    headers.forEach(function (cell) { cell.removeAttribute("aria-sort"); });
    header.setAttribute("aria-sort", order);
    var fragment = document.createDocumentFragment();
    rows.forEach(function (item) { fragment.appendChild(item.row); });
    body.appendChild(fragment);
  }

  headers.forEach(function (header, column) {
    var button = header.querySelector("button");
    button.disabled = false;
    button.addEventListener("click", function () { sort(header, column); });
  });
  var waiting = false;
  function soon() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(function () { waiting = false; show(); });
  }
  filter.addEventListener("input", soon);
  boxes.forEach(function (box) { box.addEventListener("change", soon); });
  document.documentElement.classList.add("js");
  controls.hidden = false;
  show();
})();
