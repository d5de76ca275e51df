// --- the tree of blocks. A list becomes nodes with places (pure), of which what is in view is
// drawn: a frame costs the same however many blocks there are. ---

const kMostBlocks = 20000, kBlocksAPage = 2500;
const kColumn = 84, kRow = 24, kBoxWidth = 62, kBoxHeight = 17, kMargin = 10;

// What can be told from the drawing: a run of blocks that are alike in it may be drawn as one.
function lookOf(block) {
  return [block.kind, block.users, block.uses, block.tainted, block.pinned_s !== null, block.tiers.join(), block.base !== null].join();
}

// {nodes, rows: nodes by row from left to right, columns, trunks: nodes whose children lie in several
// rows, of: node by block id}. A node is a block, or with `fold` a run of blocks without branches.
// Its first child stands in its row, each other one begins a new row; small subtrees come first, so
// that a short branch stands beside where it leaves a long prompt. What a borrowing request computes
// for itself has no parents: those blocks stand one behind the other.
function placeBlocks(blocks, fold) {
  const of = new Map(blocks.map((block) => [block.id, { blocks: [block], kids: [], above: null, row: 0, column: 0, lastRow: 0, size: 1 }]));
  const tails = new Map();
  const roots = [];
  for (const block of blocks) {
    const node = of.get(block.id);
    let above = of.get(block.parent);
    if (!above && block.tainted && block.writer !== null) {
      above = tails.get(block.writer);
      tails.set(block.writer, node);
    }
    node.above = above || null;
    (above ? above.kids : roots).push(node);
  }
  const order = roots.slice();  // parents before children
  for (let i = 0; i < order.length; ++i) for (const kid of order[i].kids) order.push(kid);
  for (const node of order.reverse()) {
    for (const kid of node.kids) node.size += kid.size;
    node.kids.sort((a, b) => a.size - b.size);
  }
  const nodes = [], rows = [], trunks = [];
  let columns = 0;
  const waiting = roots.slice().reverse();
  while (waiting.length) {
    const node = waiting.pop();
    while (fold && node.kids.length === 1 && lookOf(node.kids[0].blocks[0]) === lookOf(node.blocks[0])) {
      const kid = node.kids[0];
      for (const block of kid.blocks) {
        node.blocks.push(block);
        of.set(block.id, node);
      }
      node.kids = kid.kids;
      for (const below of node.kids) below.above = node;
    }
    const isFirst = node.above !== null && node.above.kids[0] === node;
    node.row = isFirst ? node.above.row : rows.length;
    node.column = node.above ? node.above.column + 1 : 0;
    node.lastRow = node.row;
    if (node.row === rows.length) rows.push([]);
    rows[node.row].push(node);
    nodes.push(node);
    columns = Math.max(columns, node.column + 1);
    if (node.above && !isFirst) {
      if (node.above.lastRow === node.above.row) trunks.push(node.above);
      node.above.lastRow = node.row;
    }
    for (let i = node.kids.length - 1; i >= 0; --i) waiting.push(node.kids[i]);
  }
  return { nodes, rows, columns, trunks, of, drawn: 0, selected: null };
}

// Where an arrow key goes from a node: its parent, its first child, the nearest node of the row
// above or below.
function stepFrom(tree, node, key) {
  if (!node) return tree.nodes[0] || null;
  const nearest = (row) => (tree.rows[row] || []).reduce((best, other) =>
    (best === null || Math.abs(other.column - node.column) < Math.abs(best.column - node.column) ? other : best), null);
  switch (key) {
    case "ArrowLeft": return node.above || node;
    case "ArrowRight": return node.kids[0] || node;
    case "ArrowUp": return nearest(node.row - 1) || node;
    case "ArrowDown": return nearest(node.row + 1) || node;
    case "Home": return tree.nodes[0];
    case "End": return tree.nodes[tree.nodes.length - 1];
    default: return null;
  }
}

function nodeAt(tree, x, y) {
  const column = Math.floor((x - kMargin) / kColumn), row = Math.floor((y - kMargin) / kRow);
  if (x - kMargin - column * kColumn > kBoxWidth) return null;
  return (tree.rows[row] || []).find((node) => node.column === column) || null;
}

function describeTree(blocks, total) {
  const count = (test) => blocks.filter(test).length;
  const begins = count((block) => block.parent === null && !block.tainted);
  return showCount(total) + " blocks in memory" + (total > blocks.length ? ", of which the first " + showCount(blocks.length) + " are drawn" : "") +
    "; " + showCount(begins) + (begins === 1 ? " beginning" : " different beginnings") +
    "; " + showCount(count((block) => block.users > 0)) + " in use, of which " + showCount(count((block) => block.users > 1)) + " by several requests at once; " +
    showCount(count((block) => block.uses > 1)) + " used more than once; " + showCount(count((block) => block.tainted)) + " tainted.";
}

// --- drawing ---

const boxLeft = (node) => kMargin + node.column * kColumn;
const boxTop = (node) => kMargin + node.row * kRow + (kRow - kBoxHeight) / 2;
const middle = (row) => kMargin + row * kRow + kRow / 2;

function treeColours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue("--" + name).trim();
  return { text: of("text"), soft: of("soft"), line: of("line"), card: of("card"), used: of("exact"), hot: of("partial"),
    tainted: of("similar"), cold: of("cold"), remote: of("remote"), once: of("once") };
}

function fillOf(block, colours) {
  if (block.tainted) return colours.tainted;
  return block.users > 0 ? colours.used : block.uses > 1 ? colours.hot : colours.once;
}

function drawEdge(pen, node, colours) {
  if (!node.above) return;
  pen.strokeStyle = colours.soft;
  pen.lineWidth = Math.min(4, 0.6 + Math.log2(1 + node.blocks[0].uses) / 2);  // shared by more: thicker
  const left = boxLeft(node.above) + kBoxWidth;
  pen.beginPath();
  pen.moveTo(node.above.row === node.row ? left - 3 : left + (kColumn - kBoxWidth) / 2, middle(node.row));
  pen.lineTo(boxLeft(node), middle(node.row));
  pen.stroke();
}

function drawTrunk(pen, node, colours) {
  pen.strokeStyle = colours.soft;
  pen.lineWidth = 1;
  const x = boxLeft(node) + kBoxWidth + (kColumn - kBoxWidth) / 2;
  pen.beginPath();
  pen.moveTo(boxLeft(node) + kBoxWidth - 3, middle(node.row));
  pen.lineTo(x, middle(node.row));
  pen.lineTo(x, middle(node.lastRow));
  pen.stroke();
}

function drawBox(pen, node, colours, isSelected) {
  const block = node.blocks[0], x = boxLeft(node), y = boxTop(node), fill = fillOf(block, colours);
  const plain = !block.tainted && block.users === 0 && block.uses <= 1;
  const ink = plain ? colours.text : colours.card;
  pen.lineWidth = 1;
  pen.strokeStyle = colours.soft;
  if (node.blocks.length > 1) {  // a pile
    pen.fillStyle = colours.card;
    pen.fillRect(x + 3, y - 3, kBoxWidth - 3, kBoxHeight);
    pen.strokeRect(x + 3.5, y - 2.5, kBoxWidth - 4, kBoxHeight);
  }
  pen.fillStyle = fill;
  pen.fillRect(x, y, kBoxWidth - 3, kBoxHeight);
  if (block.tainted) {  // to be seen without colours
    pen.strokeStyle = colours.card;
    pen.beginPath();
    for (let i = 5; i < kBoxWidth - kBoxHeight; i += 8) {
      pen.moveTo(x + i, y + kBoxHeight);
      pen.lineTo(x + i + kBoxHeight, y);
    }
    pen.globalAlpha = 0.35;
    pen.stroke();
    pen.globalAlpha = 1;
  }
  pen.strokeStyle = block.pinned_s !== null ? colours.text : colours.soft;
  pen.lineWidth = block.pinned_s !== null ? 2 : 1;
  pen.setLineDash(block.base !== null ? [4, 3] : []);
  pen.strokeRect(x + 0.5, y + 0.5, kBoxWidth - 4, kBoxHeight - 1);
  pen.setLineDash([]);
  if (block.tiers.length) {
    pen.fillStyle = block.tiers.includes("cold") ? colours.cold : colours.remote;
    pen.fillRect(x, y + kBoxHeight - 1, kBoxWidth - 3, 4);
  }
  pen.fillStyle = ink;
  if (block.users > 0) {
    pen.beginPath();
    pen.arc(x + 7, y + kBoxHeight / 2, 2.5, 0, 2 * Math.PI);
    pen.fill();
  }
  pen.textAlign = "left";
  if (node.blocks.length > 1) pen.fillText(showCount(node.blocks.length), x + (block.users > 0 ? 13 : 5), y + kBoxHeight / 2 + 0.5, 24);
  pen.textAlign = "right";
  pen.fillText("×" + block.uses, x + kBoxWidth - 8, y + kBoxHeight / 2 + 0.5, 26);
  if (isSelected) {
    pen.strokeStyle = colours.text;
    pen.lineWidth = 2.5;
    pen.strokeRect(x - 3, y - 5, kBoxWidth + 3, kBoxHeight + 10);
  }
}

function drawTree() {
  const view = byId("tree"), canvas = byId("tree-canvas"), tree = state.tree;
  if (!tree) return;
  const scale = window.devicePixelRatio || 1, width = view.clientWidth, height = view.clientHeight;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
  }
  const pen = canvas.getContext("2d"), colours = treeColours();
  pen.setTransform(scale, 0, 0, scale, -view.scrollLeft * scale, -view.scrollTop * scale);
  pen.clearRect(view.scrollLeft, view.scrollTop, width, height);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const firstRow = Math.max(0, Math.floor((view.scrollTop - kMargin) / kRow) - 1), lastRow = Math.ceil((view.scrollTop + height) / kRow);
  const firstColumn = Math.floor((view.scrollLeft - kMargin) / kColumn) - 1, lastColumn = Math.ceil((view.scrollLeft + width) / kColumn);
  const inView = tree.rows.slice(firstRow, lastRow + 1).flatMap((row) => row.filter((node) => node.column >= firstColumn && node.column <= lastColumn));
  for (const node of tree.trunks) if (node.row <= lastRow && node.lastRow >= firstRow && node.column >= firstColumn && node.column <= lastColumn) drawTrunk(pen, node, colours);
  for (const node of inView) drawEdge(pen, node, colours);
  for (const node of inView) drawBox(pen, node, colours, node === tree.selected);
  tree.drawn = inView.length;
}

// At most once a frame.
function drawTreeSoon() {
  if (state.treeIsDue) return;
  state.treeIsDue = true;
  requestAnimationFrame(() => {
    state.treeIsDue = false;
    drawTree();
  });
}

function showBlocks(blocks, total) {
  const before = state.tree && state.tree.selected;
  const tree = placeBlocks(blocks, byId("fold").checked);
  state.tree = tree;
  state.blocks = { list: blocks, total };
  tree.selected = (before && before.blocks.map((block) => tree.of.get(block.id)).find((node) => node)) || null;
  const space = byId("tree-space");
  space.style.width = 2 * kMargin + tree.columns * kColumn + "px";
  space.style.height = 2 * kMargin + tree.rows.length * kRow + "px";
  byId("tree").hidden = blocks.length === 0;
  setText("tree-note", blocks.length === 0 ? "No blocks yet." : describeTree(blocks, total));
  if (before && !tree.selected) showBlock(null);
  drawTree();
}

// --- the block that is chosen ---

function factsOf(node) {
  const block = node.blocks[0], last = node.blocks[node.blocks.length - 1];
  const seconds = (s) => (s < 120 ? s.toFixed(1) + " s" : s < 7200 ? (s / 60).toFixed(1) + " min" : (s / 3600).toFixed(1) + " h");
  const facts = [
    ["Tokens", block.tainted ? "some of a prompt that borrows the others' rows" : showCount(block.position) + " to " + showCount(last.length) + " of its prompt" + (block.base !== null ? " (stored as a difference from block " + block.base + ")" : "")],
    ["State", block.kind === "private" ? (block.tainted ? "computed on a similar prompt's rows: tainted, no other request finds it" : "of a running request, not to be found yet")
      : block.kind === "note" ? "what was seen of prompts that others may borrow from"
      : block.users > 0 ? "in use" : block.hot ? "cached, hot: used by several requests" : "cached, used once"],
    ["Users now", showCount(block.users) + (block.writer !== null ? " (request " + block.writer + " writes here)" : "")],
    ["Requests so far", showCount(block.uses)],
    ["Go on from here", showCount(last.children) + (last.children === 1 ? " block" : " blocks")],
    ["Age", seconds(block.age_s) + (block.users > 0 ? "" : ", last used " + seconds(block.idle_s) + " ago")],
    ["Memory", showBytes(node.blocks.reduce((total, each) => total + each.bytes, 0))],
    ["Also in", block.tiers.length ? block.tiers.join(", ") : "no colder tier"],
    ["Pinned", block.pinned_s === null ? "no" : "for " + seconds(block.pinned_s)],
  ];
  if (block.tenant !== null) facts.push(["Tenant", block.tenant + (block.salt !== null ? ", salt " + block.salt : "")]);
  return facts;
}

// Its text is asked for a little later, so that arrow keys that are held down ask for nothing.
function showBlock(node) {
  clearTimeout(state.textTimer);
  if (!node) return byId("block").replaceChildren(make("p", { class: "soft" }, "Choose a block, by mouse or with the arrow keys, to see its text."));
  const first = node.blocks[0].id, last = node.blocks[node.blocks.length - 1].id;
  const text = make("div", { class: "pieces", id: "block-text" }, "…");
  byId("block").replaceChildren(
    make("h3", {}, node.blocks.length === 1 ? "Block " + first : node.blocks.length + " blocks, " + first + " to " + last),
    make("dl", { class: "facts" }, ...factsOf(node).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])), text);
  state.textTimer = setTimeout(async () => {
    let shown;
    try {
      const answer = await (await ask("/kvlink/blocks/" + last + "?last=" + Math.min(node.blocks.length, 256))).json();
      shown = answer.text_withheld ? "The text is not shown: " + answer.text_withheld + "." : answer.text === null ? "No text is kept of it." : answer.text;
    } catch (error) {
      shown = error.message;
    }
    text.textContent = shown;
  }, 150);
}

function selectNode(node) {
  const view = byId("tree"), tree = state.tree;
  if (!node || !tree) return;
  tree.selected = node;
  const x = boxLeft(node), y = boxTop(node);
  if (x < view.scrollLeft) view.scrollLeft = x - kMargin;
  if (x + kBoxWidth > view.scrollLeft + view.clientWidth) view.scrollLeft = x + kBoxWidth + kMargin - view.clientWidth;
  if (y < view.scrollTop) view.scrollTop = y - kMargin;
  if (y + kRow > view.scrollTop + view.clientHeight) view.scrollTop = y + kRow + kMargin - view.clientHeight;
  showBlock(node);
  drawTreeSoon();
}

async function fetchBlocks() {
  const blocks = [];
  let total = 0, cursor = null;
  do {
    const page = await (await ask("/kvlink/blocks?limit=" + kBlocksAPage + (cursor ? "&cursor=" + cursor : ""))).json();
    blocks.push(...page.data);
    total = page.total;
    cursor = page.next;
  } while (cursor && blocks.length < kMostBlocks);
  return { blocks, total };
}

async function pollBlocks() {
  let fetched = null;
  try {
    fetched = await fetchBlocks();
  } catch (error) {
    byId("tree").hidden = true;
    state.tree = null;
    setText("tree-note", error.status ? error.message : "the server does not answer");
  }
  if (fetched) showBlocks(fetched.blocks, fetched.total);
}

// While it is in sight, every five seconds, or as rarely as a large cache needs: fetching and
// drawing take a tenth of the time at most.
async function pollBlocksForever() {
  let due = 0;
  for (;;) {
    const place = byId("tree-section").getBoundingClientRect();
    const inSight = place.top < innerHeight + 400 && place.bottom > -400;
    if (performance.now() >= due && (inSight || !state.blocks) && !state.paused && !document.hidden) {
      const start = performance.now();
      await pollBlocks();
      due = performance.now() + Math.max(5000, 10 * (performance.now() - start));
    }
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

function startTree() {
  const view = byId("tree");
  view.addEventListener("scroll", drawTreeSoon, { passive: true });
  view.addEventListener("click", (event) => {
    const place = view.getBoundingClientRect();
    if (state.tree) selectNode(nodeAt(state.tree, event.clientX - place.left - view.clientLeft + view.scrollLeft, event.clientY - place.top - view.clientTop + view.scrollTop));
  });
  view.addEventListener("keydown", (event) => {
    if (!state.tree || event.ctrlKey || event.metaKey || event.altKey) return;
    const next = stepFrom(state.tree, state.tree.selected, event.key);
    if (!next || !/^(Arrow|Home|End)/.test(event.key)) return;
    event.preventDefault();
    selectNode(next);
  });
  byId("fold").addEventListener("change", () => { if (state.blocks) showBlocks(state.blocks.list, state.blocks.total); });
  new ResizeObserver(drawTreeSoon).observe(view);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawTreeSoon);
  showBlock(null);
  pollBlocksForever();
}
