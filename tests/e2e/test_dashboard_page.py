"""The page at /, as far as that takes no browser: what it loads, what it says, what it reads."""
import base64
import hashlib
import html.parser
import re
import shutil
import subprocess

import httpx
import pytest


class Page(html.parser.HTMLParser):
    """Scripts, styles, and every attribute."""

    def __init__(self, text):
        super().__init__()
        self.attributes, self.inside, self.texts = [], None, {"script": [], "style": []}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag in self.texts:
            self.inside = tag
            self.texts[tag].append("")

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside:
            self.texts[self.inside][-1] += data


@pytest.fixture(scope="module")
def answer(server):
    return httpx.get(f"{server.url}/")


@pytest.fixture(scope="module")
def page(answer):
    return Page(answer.text)


def test_the_page_is_held_to_itself_by_its_policy(answer, page):
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        assert len(page.texts[tag]) == 1
        digest = base64.b64encode(hashlib.sha256(page.texts[tag][0].encode()).digest()).decode()
        assert policy[directive] == f"'sha256-{digest}'"


def test_the_page_names_nothing_outside(answer, page):
    namespaces = {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"(?:https?:)?//[\w.-]+\.[\w/.-]+", answer.text)) <= namespaces
    assert [a for a in page.attributes if a[1] in ("src", "srcset", "action", "style") or a[1].startswith("on")] == []
    assert {value for _, name, value in page.attributes if name == "href"} == {"data:,", "#chat-text"}


def test_the_page_writes_text_and_never_markup_or_code(page):
    script = page.texts["script"][0]
    assert "textContent" in script
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc",
                 "localStorage", "sessionStorage", "document.cookie"):
        assert word not in script, word


def test_every_field_of_the_page_has_a_label(answer, page):
    labelled = set(re.findall(r'<label for="([\w-]+)"', answer.text))
    for inner in re.findall(r"<label>(.*?)</label>", answer.text, re.S):
        labelled.update(re.findall(r'id="([\w-]+)"', inner))
    fields = {value for tag, name, value in page.attributes if tag in ("input", "select", "textarea") and name == "id"}
    assert len(fields) >= 6 and fields <= labelled


def test_the_page_reads_only_metrics_that_exist(page, server):
    server.wait_until_idle()
    exported = server.http.get("/metrics").text
    names = set(re.findall(r'"((?:vllm:|kvlink_)[\w:]+)"', page.texts["script"][0]))
    assert len(names) > 12
    server.http.post("/v1/completions", json={"prompt": "something, so that every family has a line", "max_tokens": 1})
    for name in names:
        if not name.startswith("kvlink_tier_"):  # this server has no colder tier: their families are empty
            assert re.search(rf"^{name}(_bucket)?[{{ ]", exported, re.M), name


CHECKS = """
const check = (what, seen, expected) => {
  if (JSON.stringify(seen) !== JSON.stringify(expected)) throw new Error(what + ": " + JSON.stringify(seen));
};
const lines = (a, b, c) => `# HELP h x\\nh_bucket{le="0.1"} ${a}\\nh_bucket{le="1"} ${b}\\nh_bucket{le="+Inf"} ${c}\\n`;
const now = parseMetrics(lines(10, 20, 20) + 'n{a="x\\\\"}y\\\\n",b="2"} 3\\nn{b="5"} 4\\nplain 1.5e3\\n');
check("labels", now.n[0].labels, { a: 'x"}y\\n', b: "2" });
check("plain", now.plain, [{ labels: {}, value: 1500 }]);
check("sum", [sum(now, "n"), sum(now, "n", { b: "5" }), sum(now, "none")], [7, 4, 0]);
check("median", quantile(now, null, "h", 0.5), 0.1);
check("third quarter", quantile(now, null, "h", 0.75), 0.55);
check("only what came since", quantile(now, parseMetrics(lines(10, 10, 10)), "h", 0.5), 0.55);
check("nothing came", quantile(now, now, "h", 0.5), null);
check("past the last bound", quantile(parseMetrics(lines(0, 0, 4)), null, "h", 0.5), 1);
check("events", takeEvents("data: 1\\n\\ndata: 2\\n\\ndata: 3"), { events: ["1", "2"], rest: "data: 3" });
check("window", windowStart([{ time: 0 }, { time: 5000 }, { time: 9000 }], 5, 9000).time, 5000);
check("life", windowStart([{ time: 0 }], 0, 9000), null);
const block = (id, parent, more) => ({ id, parent, base: null, kind: "full", users: 0, uses: 1, tainted: false, pinned_s: null, tiers: [],
  writer: null, bytes: 1, ...more });
const forest = [block(1, null, { uses: 3 }), block(2, 1, { uses: 3 }), block(3, 2), block(4, 3), block(5, 2), block(9, null), block(10, 77)];
const placed = (tree) => tree.nodes.map((node) => [node.blocks[0].id, node.blocks.length, node.row, node.column]);
const tree = placeBlocks(forest, true);
check("runs are folded, branches get rows", placed(tree), [[1, 2, 0, 0], [5, 1, 0, 1], [3, 2, 1, 1], [9, 1, 2, 0], [10, 1, 3, 0]]);
check("where a row branches off", tree.trunks.map((node) => [node.blocks[0].id, node.row, node.lastRow]), [[1, 0, 1]]);
check("every block has its node", [tree.of.get(4) === tree.of.get(3), tree.of.get(2).kids.length, tree.columns, tree.rows.length], [true, 2, 2, 4]);
check("unfolded", placed(placeBlocks(forest, false)).length, 7);
const own = [block(1, null, { tainted: true, writer: 8 }), block(2, null, { tainted: true, writer: 9 }), block(3, null, { tainted: true, writer: 8 })];
check("a borrower's blocks stand in a row", placed(placeBlocks(own, false)), [[1, 1, 0, 0], [3, 1, 0, 1], [2, 1, 1, 0]]);
const node = (id) => tree.of.get(id);
check("arrows", [stepFrom(tree, null, "ArrowDown"), stepFrom(tree, node(1), "ArrowRight"), stepFrom(tree, node(5), "ArrowLeft"),
  stepFrom(tree, node(3), "ArrowDown"), stepFrom(tree, node(9), "ArrowLeft"), stepFrom(tree, node(1), "End")].map((each) => each.blocks[0].id), [1, 5, 1, 9, 9, 10]);
check("other keys", stepFrom(tree, node(1), "a"), null);
check("where a click falls", [nodeAt(tree, 20, 20).blocks[0].id, nodeAt(tree, 10 + 84 + 5, 10 + 24 + 3).blocks[0].id, nodeAt(tree, 10 + 70, 20), nodeAt(tree, 20, 9999)],
  [1, 3, null, null]);
const wide = Array.from({ length: 20000 }, (_, i) => block(i + 1, i < 100 ? i || null : 1 + i % 100));
check("a large cache", [placeBlocks(wide, false).nodes.length, placeBlocks([], true).rows.length], [20000, 0]);
check("bytes", [showBytes(0), showBytes(1536), showBytes(512 * 1048576)], ["0 B", "1.5 KiB", "512 MiB"]);
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here; a browser runs the script in dashboard_browser_test")
def test_the_script_parses_and_its_figures_are_right(page, tmp_path):
    script = tmp_path / "page.js"
    script.write_text(page.texts["script"][0] + CHECKS, encoding="utf-8")
    run = subprocess.run(["node", script], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
