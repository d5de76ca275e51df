#!/usr/bin/env python3
"""Writes the seeds of the corpora, corpus/TARGET/seed_NAME, from what is written here. Crashes that a fuzzer found lie
beside them under other names and are left alone.

    python3 tests/fuzz/make_seeds.py
"""
import json
import pathlib
import random
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"


def seed(target, name, data):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed_{name}").write_bytes(data)


# --- http_request: a byte for the size of the pieces, then the stream ---

def http(name, text, piece=7):
    seed("http_request", name, bytes([piece]) + text.replace("\n", "\r\n").encode("latin-1"))


http("get", "GET /health HTTP/1.1\nHost: a\n\n")
http("get_old", "GET /abc HTTP/1.0\n\n")
http("head", "HEAD /metrics HTTP/1.1\nHost: a\n\n")
http("post", "POST /v1/chat/completions HTTP/1.1\nHost: a\nContent-Length: 5\nAuthorization: Bearer kvl_x\n\nhello")
http("stream", "POST /v1/cha HTTP/1.1\nHost: a\nx-api-key: k\nContent-Length: 3\n\nabc", 0)
http("chunked", "POST /abcd HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n5\nhello\n6;x=y\n world\n0\nT: v\n\n")
http("both_lengths", "POST /a HTTP/1.1\nContent-Length: 3\nTransfer-Encoding: chunked\n\n0\n\nGET /b HTTP/1.1\n\n")
http("two_lengths", "POST /a HTTP/1.1\nContent-Length: 3\nContent-Length: 4\n\nabcd")
http("pipeline", "GET /abc HTTP/1.1\n\nGET /de HTTP/1.1\n\nPOST /f HTTP/1.1\nContent-Length: 2\n\nxyGET /last HTTP/1.1\nConnection: close\n\nGET /no HTTP/1.1\n\n", 3)
http("expect", "POST /abc HTTP/1.1\nExpect: 100-continue\nContent-Length: 4\n\nbody", 30)
http("escapes", "GET /%41%zz%00%2?q=%20&r HTTP/1.1\nHost: a\n\n")
http("large_header", "GET / HTTP/1.1\nX: " + "a" * 1100 + "\n\n", 63)
http("large_body", "POST / HTTP/1.1\nContent-Length: 4000\n\n" + "b" * 2100, 63)
http("length_overflow", "POST / HTTP/1.1\nContent-Length: 18446744073709551616\n\nx")
http("negative_length", "POST / HTTP/1.1\nContent-Length: -1\n\nx")
http("folded", "GET / HTTP/1.1\nA: b\n c\n\n")
http("trace", "GET /abc HTTP/1.1\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate: a=1\ntracestate: b=2\nx-request-id: 1\n\n")
seed("http_request", "tls", b"\x05\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
seed("http_request", "nothing", b"\x00")

# --- json_request: a byte for the parser, then the body ---

CHAT, COMPLETION, TOKENIZE, DETOKENIZE, PIN, WARM, FLUSH, MESSAGES, COUNT, RESPONSES, SCHEMA = range(11)
USER = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "strict": True,
                                         "parameters": {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}}}


def body(parser, name, value):
    text = value if isinstance(value, str) else json.dumps(value)
    seed("json_request", name, bytes([parser]) + text.encode())


body(CHAT, "chat", {"model": "m", "messages": USER, "temperature": 0, "max_tokens": 5, "stream": True,
                    "stream_options": {"include_usage": True}, "stop": ["a", "b"], "seed": -1})
body(CHAT, "chat_parts", {"messages": [{"role": "developer", "content": [{"type": "text", "text": "a\u20ac\U0001f600"}]},
                                       {"role": "user", "content": "b", "name": "n"}], "logprobs": True, "top_logprobs": 3})
body(CHAT, "chat_tools", {"messages": [*USER, {"role": "assistant", "content": None, "tool_calls": [
    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "2"}], "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": False})
body(CHAT, "chat_choices", {"messages": USER, "n": 3, "best_of": 4, "top_k": -1, "top_p": 0.5, "min_p": 0.1, "logit_bias": {"5": -100},
                            "frequency_penalty": 1, "presence_penalty": -2, "repetition_penalty": 1.5, "length_penalty": 0.5})
body(CHAT, "chat_schema", {"messages": USER, "response_format": {"type": "json_schema", "json_schema": {
    "name": "x", "schema": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}}}})
body(CHAT, "chat_object", {"messages": USER, "response_format": {"type": "json_object"}})
body(CHAT, "chat_grammar", {"messages": USER, "grammar": "root ::= ([a-z]{1,3} | \"x\"*)? other\nother ::= . [^\\n\\u00e9]+ # c\n"})
body(CHAT, "chat_choice", {"messages": USER, "structured_outputs": {"choice": ["a\"\\", "b\n"]}, "guided_choice": None})
body(CHAT, "chat_cache", {"messages": USER, "cache_salt": "s", "cache_prompt": False, "deadline_ms": 5, "timeout": 1.5,
                          "kvlink": {"reuse": True, "store": False, "similar": "strict", "sort_tool_keys": True}, "deterministic": True})
body(CHAT, "chat_twice", "{\"messages\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"z\":1,\"content\":\"b\"}],\"tools\":{},\"tools\":null}")
body(CHAT, "deep", "{\"messages\":" + "[" * 120 + "]" * 120 + "}")
body(CHAT, "numbers", {"messages": USER, "temperature": 1e308, "seed": 18446744073709551615, "max_tokens": 9223372036854775807, "n": 1e2})
body(COMPLETION, "text", {"prompt": "a", "suffix": "b", "max_tokens": 1, "echo": False, "logprobs": 2})
body(COMPLETION, "texts", {"prompt": ["a", [1, 2, 3], "b"], "echo": True, "logprobs": True, "max_tokens": 0, "prompt_logprobs": 1})
body(COMPLETION, "tokens", {"prompt": [1, 2, 999], "use_beam_search": True, "best_of": 2, "n_predict": -1})
body(COMPLETION, "token_range", {"prompt": [1000]})
body(TOKENIZE, "tokenize", {"content": "a", "add_special": True, "with_pieces": True})
body(TOKENIZE, "tokenize_chat", {"messages": USER, "tools": [TOOL], "add_generation_prompt": False})
body(DETOKENIZE, "detokenize", {"tokens": [0, 1, 999], "model": "m"})
body(PIN, "pin", {"messages": USER, "ttl_s": 5})
body(PIN, "pin_two", {"prompt": ["a", "b"], "ttl_s": 1e-9})
body(WARM, "warm", {"prompt": "a", "kvlink": {"store": False}})
body(FLUSH, "flush", {})
body(FLUSH, "flush_fields", {"all": [True]})
body(MESSAGES, "anthropic", {"model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
                             "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [
                                 {"type": "thinking", "thinking": "t"}, {"type": "text", "text": "b"},
                                 {"type": "tool_use", "id": "1", "name": "f", "input": {"k": [1, {"v": None}]}}]},
                                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}]}]}],
                             "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "tool", "name": "f"},
                             "stop_sequences": ["x"], "temperature": 0.5})
body(COUNT, "anthropic_count", {"messages": [{"role": "user", "content": [{"type": "image"}]}]})
body(RESPONSES, "responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                                        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                                        {"type": "function_call_output", "call_id": "1", "output": "o"}, {"type": "reasoning"}],
                              "instructions": "i", "previous_response_id": "resp_1", "store": False, "max_output_tokens": 5,
                              "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "string"}}},
                              "tools": [{"type": "function", "name": "f", "parameters": {}}], "tool_choice": {"type": "function", "name": "f"}})
body(RESPONSES, "responses_text", {"input": "a", "previous_response_id": "resp_2"})
body(SCHEMA, "schema_object", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": ["string", "null"]},
                                                                "c": {"enum": [1, "x", None]}, "d": {"const": {"k": []}}},
                               "required": ["b"], "additionalProperties": False})
body(SCHEMA, "schema_ref", {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]},
                                                                 "minItems": 1, "maxItems": 3}}})
body(SCHEMA, "schema_self", {"$ref": "#"})
body(SCHEMA, "schema_loop", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})
body(SCHEMA, "schema_string", {"type": "string", "minLength": 2, "maxLength": 5})
body(SCHEMA, "schema_map", {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": {"type": "number"}}})

body(11, "unpin", {"messages": USER})
body(12, "blocks", "?limit=10&cursor=3.100")
body(12, "block", "7?last=5")

# --- redis_reply: a byte for the size of the pieces, then the stream ---

for name, stream in {
        "texts": "+OK\r\n$5\r\nhello\r\n$0\r\n\r\n$-1\r\n:42\r\n:-1\r\n",
        "array": "*3\r\n$1\r\na\r\n*2\r\n:1\r\n$-1\r\n+b\r\n*0\r\n*-1\r\n",
        "moved": "-MOVED 3999 127.0.0.1:6381\r\n-MOVED 3999 :6381\r\n-MOVED 16384 h:1\r\n-MOVED 1 ::1:7000\r\n",
        "ask": "-ASK 3999 127.0.0.1:6381\r\n-ASK 1\r\n-ASK  h:1\r\n",
        "errors": "-NOAUTH Authentication required.\r\n-OOM x\r\n-LOADING y\r\n-ERR unknown\r\n-CLUSTERDOWN z\r\n",
        "slots": "*2\r\n*3\r\n:0\r\n:8191\r\n*3\r\n$9\r\n127.0.0.1\r\n:7000\r\n$2\r\nid\r\n*3\r\n:8192\r\n:16383\r\n*2\r\n$0\r\n\r\n:7001\r\n",
        "slots_wrong": "*1\r\n*3\r\n:5\r\n:4\r\n*2\r\n$1\r\na\r\n:0\r\n*1\r\n:1\r\n",
        "scan": "*2\r\n$1\r\n0\r\n*2\r\n$3\r\nk:1\r\n$3\r\nk:2\r\n",
        "many": "*1048577\r\n",
        "nested_many": "*1048000\r\n*1048000\r\n",
        "deep": "*1\r\n" * 12 + ":1\r\n",
        "length": "$9223372036854775807\r\nx\r\n",
        "negative": "$-7\r\n*-7\r\n",
        "no_number": "$x\r\n*\r\n:\r\n",
        "nonsense": "hello\r\n",
}.items():
    seed("redis_reply", name, b"\x03" + stream.encode())

# --- block_codec: 0: bytes; 1: bytes without their checksum; 2: what to write ---


def block(payload, compression=0, kind=1, tokens=(1, 2, 3), stored=None, **wrong):
    stored = payload if stored is None else stored
    fields = {"version": 1, "header_bytes": 120 + 4 * len(tokens), "rows": 3, "cost": 1000,
              "payload_bytes": len(payload), "stored_bytes": len(stored), **wrong}
    return (b"KVLB" + struct.pack("<HBBIIIIQQ", fields["version"], kind, compression, fields["header_bytes"], len(tokens),
                                  fields["rows"], fields["cost"], fields["payload_bytes"], fields["stored_bytes"]) +
            bytes(range(16)) + bytes(16) + bytes([7] * 16) + bytes([9] * 32) +
            b"".join(struct.pack("<i", token) for token in tokens) + stored)


TEXT = b"sixteen bytes of"
ZSTD = b"\x28\xb5\x2f\xfd\x20\x10" + bytes([(16 << 3 | 1), 0, 0]) + TEXT  # one frame of one raw block
seed("block_codec", "bytes", b"\x00" + block(TEXT) + bytes(16))
seed("block_codec", "short", b"\x00KVLB")
seed("block_codec", "plain", b"\x01" + block(TEXT))
seed("block_codec", "empty", b"\x01" + block(b"", tokens=()))
seed("block_codec", "opaque", b"\x01" + block(TEXT, kind=2))
seed("block_codec", "lz4", b"\x01" + block(TEXT, 1, stored=b"\xf0\x01" + TEXT))
seed("block_codec", "zstd", b"\x01" + block(TEXT, 2, stored=ZSTD))
seed("block_codec", "zstd_planes", b"\x01" + block(TEXT, 3, stored=ZSTD))
seed("block_codec", "zstd_short", b"\x01" + block(TEXT * 2, 2, stored=ZSTD))
seed("block_codec", "unknown_compression", b"\x01" + block(TEXT, 4))
seed("block_codec", "lengths_differ", b"\x01" + block(TEXT, payload_bytes=17))
seed("block_codec", "huge_payload", b"\x01" + block(TEXT, 2, stored=ZSTD, payload_bytes=1 << 31))
seed("block_codec", "huge_header", b"\x01" + block(TEXT, tokens=(), header_bytes=120 + 4 * 0xffffff))
seed("block_codec", "newer", b"\x01" + block(TEXT, version=2))
for number in range(4):
    source = random.Random(number)
    seed("block_codec", f"write_{number}", bytes([2, number, 3]) + bytes(source.randrange(256) for _ in range(60)) + TEXT * number)

# --- cache_operations: the setting, the type of K and V, then choices ---

for setting in range(8):
    source = random.Random(setting)
    seed("cache_operations", f"setting_{setting}", bytes([setting, setting % 3]) + bytes(source.randrange(256) for _ in range(900)))
seed("cache_operations", "nothing", b"")

# --- gguf_header: 1: zeros follow, 0: none; then the file ---

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8
BLOCK = {F32: (1, 4), F16: (1, 2), Q4_0: (32, 18), Q8_0: (32, 34)}


def text(value):
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(value)) + value


def value_of(value):
    if isinstance(value, bool):
        return BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return UINT32, struct.pack("<I", value)
    if isinstance(value, float):
        return FLOAT32, struct.pack("<f", value)
    if isinstance(value, list):
        if isinstance(value[0], int):
            return ARRAY, struct.pack("<IQ", INT32, len(value)) + b"".join(struct.pack("<i", item) for item in value)
        items = [value_of(item) for item in value]
        return ARRAY, struct.pack("<IQ", items[0][0], len(items)) + b"".join(data for _, data in items)
    return STRING, text(value)


def gguf(keys, tensors, version=3):
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    for name, value in keys.items():
        kind, data = value_of(value)
        out += text(name) + struct.pack("<I", kind) + data
    offset = 0
    for name, (kind, *dims) in tensors.items():
        out += text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", n) for n in dims) + struct.pack("<IQ", kind, offset)
        count, size = BLOCK[kind]
        elements = 1
        for n in dims:
            elements *= n
        offset += -(-elements // count * size // 32) * 32
    return out


BPE = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
       "tokenizer.ggml.tokens": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "H", "e", "l", "o", "\u0120", "ll", "\u010a", "1", "\u00f0"],
       "tokenizer.ggml.token_type": [3, 3, 3] + [1] * 9, "tokenizer.ggml.merges": ["l l"], "tokenizer.ggml.bos_token_id": 1,
       "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.add_bos_token": True,
       "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"}
SPM = {"tokenizer.ggml.model": "llama",
       "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "<0x0A>", "\u2581", "H", "e", "l", "o", "ll", "\u2581H", "<0xF0>"],
       "tokenizer.ggml.scores": [0.0] * 4 + [-float(i) for i in range(8)],
       "tokenizer.ggml.token_type": [2, 3, 3, 6] + [1] * 7 + [6], "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
       "tokenizer.ggml.add_space_prefix": True}


def model(architecture="llama", kind=F32, vocabulary=None, more_keys=None, more=None, without=()):
    """One layer, embedding 32, two heads of 16 with one for K and V, feed-forward 32."""
    prefix = architecture + "."
    keys = {"general.architecture": architecture, "general.name": "seed"}
    keys |= {prefix + name: value for name, value in {
        "context_length": 64, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32, "attention.head_count": 2,
        "attention.head_count_kv": 1, "attention.key_length": 16, "attention.value_length": 16, "rope.dimension_count": 16,
        "attention.layer_norm_rms_epsilon": 1e-5, **(more_keys or {})}.items()}
    keys |= BPE if vocabulary is None else vocabulary
    tokens = len(keys["tokenizer.ggml.tokens"])
    tensors = {"token_embd.weight": (kind, 32, tokens), "output_norm.weight": (F32, 32)}
    layer = {"attn_norm": (F32, 32), "attn_q": (kind, 32, 32), "attn_k": (kind, 32, 16), "attn_v": (kind, 32, 16),
             "attn_output": (kind, 32, 32), "ffn_norm": (F32, 32), "ffn_gate": (kind, 32, 32), "ffn_up": (kind, 32, 32),
             "ffn_down": (kind, 32, 32), **(more or {})}
    tensors |= {f"blk.0.{name}.{'bias' if name.endswith(' bias') else 'weight'}".replace(" bias", ""): shape
                for name, shape in layer.items() if name not in without}
    return gguf(keys, tensors)


def file(name, data, zeros=1):
    seed("gguf_header", name, bytes([zeros]) + data)


HEAD_NORMS = {"attn_q_norm": (F32, 16), "attn_k_norm": (F32, 16)}
POST_NORMS = {"post_attention_norm": (F32, 32), "post_ffw_norm": (F32, 32)}
file("llama", model())
file("llama_f16_spm", model(kind=F16, vocabulary=SPM))
file("llama_cut", model(), zeros=0)
file("llama_yarn", model(more_keys={"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}))
file("llama_float_heads", model(more_keys={"attention.head_count": 2.0}))
file("llama_layers", model(more_keys={"block_count": 1024}))
file("mixtral", model(more_keys={"expert_count": 2, "expert_used_count": 1}, without=("ffn_gate", "ffn_up", "ffn_down"), more={
    "ffn_gate_inp": (F32, 32, 2), "ffn_gate_exps": (F32, 32, 32, 2), "ffn_up_exps": (F32, 32, 32, 2), "ffn_down_exps": (F32, 32, 32, 2)}))
file("qwen2", model("qwen2", Q8_0, more={"attn_q bias": (F32, 32), "attn_k bias": (F32, 16), "attn_v bias": (F32, 16)}))
file("qwen3", model("qwen3", Q4_0, more=HEAD_NORMS))
file("gemma2", model("gemma2", vocabulary=SPM, more=POST_NORMS))
file("gemma3", model("gemma3", vocabulary=SPM, more=HEAD_NORMS | POST_NORMS, more_keys={"attention.sliding_window": 16}))
file("phi3", model("phi3", vocabulary=SPM, without=("attn_q", "attn_k", "attn_v", "ffn_gate"),
                   more={"attn_qkv": (F32, 32, 64), "ffn_up": (F32, 32, 64)}))
file("granite", model("granite", more_keys={"attention.scale": 0.25, "embedding_scale": 12.0, "residual_scale": 0.5, "logit_scale": 8.0}))
file("unknown_architecture", model("bert"))
file("no_tokens", gguf({"general.architecture": "llama"}, {}))
file("twice", model(vocabulary=BPE | {"tokenizer.ggml.tokens": ["a", "a"] + [""] * 10}))
EIGHT = {k: v for k, v in BPE.items() if not k.startswith("tokenizer.ggml.add_") and "_token_id" not in k} | {
    "tokenizer.ggml.tokens": BPE["tokenizer.ggml.tokens"][:8], "tokenizer.ggml.token_type": [1] * 8}
file("eight_tokens", model(vocabulary=EIGHT))
file("no_bos", model(vocabulary=EIGHT | {"tokenizer.ggml.add_bos_token": True}))
file("no_eos", model(vocabulary=EIGHT | {"tokenizer.ggml.add_eos_token": True}))
file("split", gguf({"split.count": 2, "general.architecture": "llama"}, {}))
file("alignment", gguf({"general.alignment": 1 << 31, "general.architecture": "llama"}, {"a": (F32, 1)}))
file("huge_dims", gguf({"general.architecture": "llama"}, {"a": (F32, 1 << 40, 1 << 20)}))
file("old_version", gguf({}, {}, version=1))
file("counts", b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 1 << 62))
file("empty", b"", zeros=0)
