"use strict";
// Sorting and filtering of the op table, and the switch between light and dark. The page is complete without it.
(function () {
  var CHUNK = 200; // rows that are in the document at once, until scrolling asks for more
  var table = document.getElementById("op-table");
  var scroll = document.getElementById("op-scroll");
  var body = table.tBodies[0];
  var rows = Array.prototype.map.call(body.rows, function (row, index) {
    return {
      row: row,
      index: index,
      match: row.dataset.m,
      values: row.dataset.v.split(" ").map(Number),
      text: row.querySelector("summary, bdi") ? row.querySelector("summary, bdi").textContent : "",
      search: row.textContent.toLowerCase(),
    };
  });
  var controls = document.querySelector(".controls");
  var filter = document.getElementById("filter");
  var boxes = Array.prototype.slice.call(controls.querySelectorAll("input[name=match]"));
  var shown = document.getElementById("shown");
  var headers = Array.prototype.slice.call(table.tHead.rows[0].cells);
  var left = rows; // what the filter leaves, in the order of the sort
  var drawn = 0;

  function draw(count) {
    var fragment = document.createDocumentFragment();
    var end = Math.min(left.length, count);
    for (; drawn < end; drawn += 1) fragment.appendChild(left[drawn].row);
    body.appendChild(fragment);
  }

  function show() {
    var words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    var kinds = {};
    boxes.forEach(function (box) { kinds[box.value] = box.checked; });
    left = rows.filter(function (item) {
      return kinds[item.match] !== false && words.every(function (word) { return item.search.includes(word); });
    });
    body.textContent = "";
    drawn = 0;
    scroll.scrollTop = 0;
    draw(CHUNK);
    table.setAttribute("aria-rowcount", left.length + 1);
    shown.textContent = left.length === rows.length ? rows.length + " rows" : left.length + " of " + rows.length + " rows";
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
    headers.forEach(function (cell) { cell.setAttribute("aria-sort", "none"); });
    header.setAttribute("aria-sort", order);
    show();
  }

  headers.forEach(function (header, column) {
    var button = header.querySelector("button");
    button.disabled = false;
    header.setAttribute("aria-sort", "none");
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
  scroll.addEventListener("scroll", function () {
    if (scroll.scrollTop + 2 * scroll.clientHeight > scroll.scrollHeight) draw(drawn + CHUNK);
  }, { passive: true });

  // The switch starts from what the system asks for, and says what it switches to.
  var root = document.documentElement;
  var theme = document.getElementById("theme");
  var system = matchMedia("(prefers-color-scheme: dark)");
  function dark() { return root.dataset.theme ? root.dataset.theme === "dark" : system.matches; }
  function say() { theme.textContent = dark() ? "Light" : "Dark"; }
  theme.addEventListener("click", function () { root.dataset.theme = dark() ? "light" : "dark"; say(); });
  system.addEventListener("change", say);

  // Paper cannot be unfolded: what is folded outside the op table is printed open, and folded again.
  var opened = [];
  addEventListener("beforeprint", function () {
    opened = Array.prototype.filter.call(document.querySelectorAll("section > details"), function (each) { return !each.open; });
    opened.forEach(function (each) { each.open = true; });
  });
  addEventListener("afterprint", function () { opened.forEach(function (each) { each.open = false; }); });

  root.classList.add("js");
  controls.hidden = theme.hidden = false;
  say();
  show();
})();
