//! What bodies of all endpoints are found to ask for.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::prompt::Feature;

fn of(endpoint: Endpoint, body: &Value) -> Content {
    content(endpoint, body.to_string().as_bytes())
}

fn chat(body: &Value) -> Content {
    of(Endpoint::Chat, body)
}

/// Checks that a body has just the text of these strings.
fn assert_text(content: &Content, texts: &[&str]) {
    let mut expected = TextCounts::default();
    for text in texts {
        expected.add(&TextCounts::of(text), 1);
    }
    assert_eq!(content.text, expected, "{texts:?}");
}

#[test]
fn the_text_of_messages_counts_and_what_describes_them_does_not() {
    let content = chat(&json!({
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "Be short.", "cache_control": {"type": "ephemeral"}},
            {"role": "user", "name": "ada", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": " this?"}]},
            {"role": "assistant", "content": null, "refusal": null, "tool_calls": [
                {"id": "call_0123456789", "type": "function", "function": {"name": "now", "arguments": "{\"zone\":\"UTC\"}"}},
            ]},
            {"role": "tool", "tool_call_id": "call_0123456789", "content": "noon"},
        ],
        "metadata": {"content": "not counted", "messages": ["neither"]},
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"title": "no"}}},
        "stop": ["stop"], "user": "me", "seed": 12, "logit_bias": {"12": 5},
    }));
    assert_text(&content, &["Be short.", "ada", "What is", " this?", "now", r#"{"zone":"UTC"}"#, "noon"]);
    assert_eq!((content.messages, content.prompts, content.token_ids), (5, 1, 0), "the call of a tool is wrapped, too");
    assert_eq!(content.model.as_deref(), Some("tiny"));
}

#[test]
fn both_spellings_of_a_character_are_one() {
    let text = "潮水 🌊 \"quoted\"\n\ttabbed é ".repeat(200);
    let raw = json!({"messages": [{"role": "user", "content": text}]}).to_string();
    let units = |c: char| c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
    let escaped: String = raw.chars().map(|c| if c.is_ascii() { c.to_string() } else { units(c) }).collect();
    assert!(escaped.len() > raw.len());
    let (raw, escaped) = (content(Endpoint::Chat, raw.as_bytes()), content(Endpoint::Chat, escaped.as_bytes()));
    assert_eq!(raw, escaped);
    assert_eq!(raw.text.get(Feature::Han), 400);
    assert!(!raw.prefix.is_empty());
}

#[test]
fn media_count_by_the_piece_whatever_their_size() {
    let base64 = "QUJD".repeat(10_000);
    let content = chat(&json!({"messages": [{"role": "user", "content": [
        {"type": "text", "text": "See"},
        {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{base64}"), "detail": "low"}},
        {"type": "input_image", "image_url": "https://images.example/a.png"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64}},
        {"type": "input_audio", "input_audio": {"data": base64, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": "https://sounds.example/a.wav"}},
        {"type": "video_url", "video_url": {"url": "https://films.example/a.mp4"}},
        {"type": "text", "text": "this", "image_url": null},
    ]}]}));
    assert_text(&content, &["See", "this"]);
    assert_eq!((content.images, content.audios, content.videos), (3, 2, 1));
    let listed = of(Endpoint::Embeddings, &json!({"images": ["data:image/png;base64,AAAA", "data:,"]}));
    assert_eq!((listed.images, listed.text.is_empty()), (2, true));
}

#[test]
fn token_ids_count_exactly() {
    let completions = |prompt: Value| of(Endpoint::Completions, &json!({"prompt": prompt}));
    let one = completions(json!([300, 301, 302]));
    assert_eq!((one.token_ids, one.prompts, one.text.is_empty()), (3, 1, true));
    let batch = completions(json!([[300, 301], [302, 303, 304], []]));
    assert_eq!((batch.token_ids, batch.prompts), (5, 3));
    for (endpoint, body) in [
        (Endpoint::Generate, json!({"token_ids": [1, 2], "sampling_params": {"max_tokens": 2}})),
        (Endpoint::Tokenize, json!({"tokens": [1, 2]})),
        (Endpoint::Embeddings, json!({"input": [1, 2]})),
        (Endpoint::Completions, json!({"prompt": {"prompt_token_ids": [1, 2]}})),
    ] {
        assert_eq!(of(endpoint, &body).token_ids, 2, "{body}");
    }
    let odd = content(Endpoint::Completions, br#"{"prompt":[1 , 2.5,-3,4e2, null,true,99999999999999999999,5"#);
    assert_eq!(odd.token_ids, 5);
    let embedded = of(Endpoint::Completions, &json!({"prompt_embeds": "A".repeat(8_000)}));
    assert_eq!((embedded.embeddings_bytes, embedded.text.is_empty()), (6_000, true));
}

#[test]
fn every_endpoint_has_its_own_names_for_the_prompt() {
    for (endpoint, body, texts) in [
        (Endpoint::Completions, json!({"prompt": "one"}), vec!["one"]),
        (Endpoint::Completions, json!({"prompt": ["one", "two"]}), vec!["one", "two"]),
        (Endpoint::Responses, json!({"input": "one", "instructions": "two"}), vec!["one", "two"]),
        (
            Endpoint::Responses,
            json!({"input": [
                {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
                {"type": "function_call", "name": "two", "call_id": "no", "arguments": "three"},
                {"type": "function_call_output", "call_id": "no", "output": "four"},
            ]}),
            vec!["one", "two", "three", "four"],
        ),
        (
            Endpoint::Messages,
            json!({"system": [{"type": "text", "text": "one"}], "messages": [
                {"role": "user", "content": "two"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "no", "name": "three", "input": {"a": [1]}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "no", "content": "four"}]},
            ]}),
            vec!["one", "two", "three", r#"{"a": [1]}"#, "four"],
        ),
        (Endpoint::Embeddings, json!({"input": ["one", "two"]}), vec!["one", "two"]),
        (Endpoint::Embeddings, json!({"texts": ["one"]}), vec!["one"]),
        (Endpoint::Embeddings, json!({"messages": [{"role": "user", "content": "one"}]}), vec!["one"]),
        (Endpoint::Classify, json!({"input": "one"}), vec!["one"]),
        (Endpoint::Score, json!({"text_1": "one", "text_2": "two"}), vec!["one", "two"]),
        (Endpoint::Tokenize, json!({"prompt": "one"}), vec!["one"]),
        (Endpoint::Decisions, json!({"state": {"a": "one"}, "questions": []}), vec![r#"{"a": "one"}"#, "[]"]),
    ] {
        assert_text(&of(endpoint, &body), &texts);
    }
}

#[test]
fn a_query_counts_with_each_of_its_documents() {
    let rerank = of(Endpoint::Rerank, &json!({"documents": ["a b", {"text": "c"}, "d"], "query": "one two"}));
    assert_text(&rerank, &["one two", "one two", "one two", "a b", "c", "d"]);
    let one_to_many = of(Endpoint::Score, &json!({"text_1": "one", "text_2": ["a", "b"]}));
    assert_text(&one_to_many, &["one", "one", "a", "b"]);
    let pairs = of(Endpoint::Score, &json!({"queries": ["one", "two"], "documents": ["a", "b"]}));
    assert_text(&pairs, &["one", "two", "a", "b"]);
}

#[test]
fn tools_count_as_python_writes_json() {
    let tools = r#"[ {"type":"function" ,"function":{"name":"now","description":"\u6f6e\n\"x\"","n":[1,2.5,true]}} ]"#;
    let body = format!(r#"{{"tools":{tools},"messages":[]}}"#);
    let content = content(Endpoint::Chat, body.as_bytes());
    let text =
        r#"[{"type": "function", "function": {"name": "now", "description": "潮\n\"x\"", "n": [1, 2.5, true]}}]"#;
    assert_text(&content, &[text]);
    assert!(content.has_tools && !chat(&json!({"tools": []})).has_tools && !chat(&json!({"tools": null})).has_tools);
}

#[test]
fn the_output_limit_is_that_of_all_answers() {
    for (endpoint, body, limit) in [
        (Endpoint::Chat, json!({}), None),
        (Endpoint::Chat, json!({"max_tokens": null}), None),
        (Endpoint::Chat, json!({"max_tokens": 9, "max_completion_tokens": 5}), Some(5)),
        (Endpoint::Chat, json!({"max_tokens": 9, "max_completion_tokens": null}), Some(9)),
        (Endpoint::Chat, json!({"max_tokens": 10, "n": 3}), Some(30)),
        (Endpoint::Chat, json!({"max_tokens": 10, "messages": [[{"role": "user"}], [{"role": "user"}]]}), Some(20)),
        (Endpoint::Chat, json!({"max_output_tokens": 5}), None),
        (Endpoint::Completions, json!({}), Some(16)),
        (Endpoint::Completions, json!({"max_tokens": "12"}), Some(12)),
        (Endpoint::Completions, json!({"max_tokens": -1, "n": 0}), Some(0)),
        (Endpoint::Completions, json!({"max_tokens": 10, "n": 2, "best_of": 4, "prompt": ["a", "b"]}), Some(80)),
        (Endpoint::Completions, json!({"max_tokens": 1e300, "n": 1e300}), Some(MAX_BUDGET_TOKENS)),
        (Endpoint::Responses, json!({"max_output_tokens": 5, "max_tokens": 9}), Some(5)),
        (Endpoint::Messages, json!({"max_tokens": 9}), Some(9)),
        (Endpoint::Generate, json!({"sampling_params": {"max_tokens": 2, "n": 2}, "max_tokens": 9}), Some(18)),
        (Endpoint::Embeddings, json!({"max_tokens": 9}), Some(0)),
        (Endpoint::Tokenize, json!({}), Some(0)),
    ] {
        assert_eq!(of(endpoint, &body).output_tokens_limit, limit, "{endpoint:?} {body}");
    }
    let whole = chat(&json!({"ignore_eos": true, "min_tokens": 7, "truncate_prompt_tokens": 100, "stream": true}));
    assert!(whole.ignore_eos && whole.is_streamed);
    assert_eq!((whole.min_tokens, whole.truncate_prompt_tokens), (7, Some(100)));
    for stream in [json!(false), json!(null), json!("false"), json!(0), json!({"a": 1})] {
        assert!(!chat(&json!({"stream": stream})).is_streamed, "{stream}");
    }
    assert_eq!(chat(&json!({"truncate_prompt_tokens": -1})).truncate_prompt_tokens, None);
}

#[test]
fn models_are_read_up_to_a_length() {
    let model = |name: &str| chat(&json!({"model": name})).model;
    assert_eq!(model("Qwen/\"潮\"").as_deref(), Some("Qwen/\"潮\""));
    assert!(model(&"m".repeat(MAX_MODEL_BYTES)).is_some());
    assert_eq!(model(&"m".repeat(MAX_MODEL_BYTES + 1)), None);
    let last = content(Endpoint::Chat, br#"{"model":"a","m\u006fdel":"b","model":5}"#);
    assert_eq!(last.model, None);
}

/// A conversation of so many turns of about 3,000 bytes.
fn conversation(turns: usize, model: &str) -> Value {
    let turn = |number: usize| json!({"role": "user", "content": format!("{number} {}", "tide and gate ".repeat(220))});
    json!({"messages": (0..turns).map(turn).collect::<Vec<_>>(), "model": model})
}

#[test]
fn conversations_share_the_hashes_of_what_they_have_in_common() {
    let (short, long) = (chat(&conversation(4, "m")).prefix, chat(&conversation(9, "m")).prefix);
    assert_eq!((short.len(), long.len()), (6, 13));
    assert_eq!(short[..], long[..short.len()]);

    let mut changed = conversation(9, "m");
    changed["messages"][3]["content"] = json!("another");
    let changed = chat(&changed).prefix;
    assert_eq!(changed[..4], long[..4], "three messages are the same");
    assert!(changed[4..].iter().all(|hash| !long.contains(hash)), "and nothing behind them");

    assert!(chat(&conversation(4, "other")).prefix.iter().all(|hash| !short.contains(hash)), "models share no cache");
    let mut salted = conversation(4, "m");
    salted["cache_salt"] = json!("s");
    assert!(chat(&salted).prefix.iter().all(|hash| !short.contains(hash)));
    let mut spoken = conversation(4, "m");
    spoken["messages"][0]["role"] = json!("system");
    assert_ne!(chat(&spoken).prefix[0], short[0]);
}

#[test]
fn token_ids_and_images_are_part_of_the_prefix() {
    let ids =
        |first: u32| of(Endpoint::Completions, &json!({"prompt": (first..first + 1_200).collect::<Vec<_>>()})).prefix;
    assert_eq!(ids(7).len(), 2, "512 ids are a block");
    assert_ne!(ids(7), ids(8));
    let image = |url: &str| {
        let text = json!({"type": "text", "text": "tide ".repeat(500)});
        chat(&json!({"messages": [{"content": [{"type": "image_url", "image_url": {"url": url}}, text]}]})).prefix
    };
    assert_ne!(image("data:a"), image("data:b"));
    assert_eq!(image("data:a"), image("data:a"));
}

#[test]
fn the_prefix_is_bounded() {
    let content = of(Endpoint::Completions, &json!({"prompt": "tide".repeat(2_000_000)}));
    assert_eq!(content.prefix.len(), MAX_PREFIX_BLOCKS);
    assert_eq!(content.text.get(Feature::Letters), 8_000_000, "what follows is counted all the same");
}

#[test]
fn what_is_no_json_object_counts_as_text_and_what_breaks_off_as_far_as_it_goes() {
    for body in ["", "no json", "[\"list\"]", "\"text\"", "5"] {
        let content = content(Endpoint::Chat, body.as_bytes());
        assert_text(&content, &[body]);
        assert_eq!((content.prompts, content.messages), (1, 0));
    }
    for end in ["", "\",", "\"}", "\"}]", "\"}],\"x\":nul", "\"}]} trailing", "\"}],\"x\" 1", "\"}}}"] {
        let body = format!(r#"{{"stream":true,"messages":[{{"role":"user","content":"one two{end}"#);
        let content = content(Endpoint::Chat, body.as_bytes());
        assert_text(&content, &["one two"]);
        assert!(content.is_streamed, "{body}");
    }
    let form = content(Endpoint::Audio, b"--boundary\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n\0\0\0");
    assert_eq!((form.audios, form.text.is_empty(), form.prompts), (1, true, 1));
}

#[test]
fn depth_costs_nothing() {
    const LEVELS: usize = 200_000;
    // A small stack, so that a recursive reader would overflow it.
    let reader = std::thread::Builder::new().stack_size(256 * 1024).spawn(|| {
        for (open, close) in [("[", "]"), ("{\"content\":", "}"), ("{\"a\":", "}")] {
            for field in ["prompt", "tools", "metadata", "image", "max_tokens"] {
                let body =
                    format!("{{\"{field}\":{}\"deep\"{},\"stream\":true}}", open.repeat(LEVELS), close.repeat(LEVELS));
                assert!(content(Endpoint::Chat, body.as_bytes()).is_streamed, "{field} {open}");
            }
        }
    });
    reader.unwrap().join().unwrap();
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::hash_map("content|text|role|function|arguments|image_url|.", inner, 0..6)
                .prop_map(Value::from_iter),
        ]
    })
}

/// The text of a prompt, told from a tree, and how many token ids it has.
fn from_tree(value: &Value, text: &mut TextCounts, ids: &mut u64) {
    match value {
        Value::String(string) => text.add(&TextCounts::of(string), 1),
        Value::Number(_) => *ids += 1,
        Value::Array(items) => items.iter().for_each(|item| from_tree(item, text, ids)),
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), value) {
                    ("content" | "text" | "function", _) | ("arguments", Value::String(_)) => {
                        from_tree(value, text, ids)
                    }
                    ("arguments", Value::Array(_) | Value::Object(_)) => {
                        text.add(&TextCounts::of(&python_json(value)), 1);
                    }
                    _ => {}
                }
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

/// JSON as Python writes it, except that strings keep the escapes that they came with.
fn python_json(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(python_json).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| format!("{}: {}", json!(name), python_json(value));
            format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

proptest! {
    #[test]
    fn reading_without_a_tree_finds_what_a_tree_holds(prompt in any_json(), other in any_json(), is_pretty in any::<bool>()) {
        let body = json!({"metadata": other, "prompt": prompt, "stop": other});
        let body = if is_pretty { serde_json::to_string_pretty(&body) } else { serde_json::to_string(&body) }.unwrap();
        let content = content(Endpoint::Completions, body.as_bytes());
        let (mut text, mut ids) = (TextCounts::default(), 0);
        from_tree(&prompt, &mut text, &mut ids);
        prop_assert_eq!((content.text, content.token_ids), (text, ids), "{}", body);
    }

    #[test]
    fn any_bytes_are_read(body in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(content(Endpoint::Chat, &body).prompts >= 1);
        let body = [br#"{"messages":["#, &body[..]].concat();
        prop_assert!(content(Endpoint::Chat, &body).prompts >= 1);
    }

    #[test]
    fn one_walk_finds_what_two_find(body in crate::prompt::measure::odd_json()) {
        for endpoint in [Endpoint::Chat, Endpoint::Rerank, Endpoint::Audio] {
            let expected = (measure(&body), content(endpoint, &body));
            prop_assert_eq!(measured_content(endpoint, &body), expected, "{}", String::from_utf8_lossy(&body));
        }
    }

    #[test]
    fn one_walk_finds_what_two_find_in_long_bodies(
        text in prop::collection::vec(prop::sample::select(vec!["word ", "潮水", "\"", "\n", "\u{1}", "é"]), 0..900),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        length in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let message = json!({"role": "user", "content": text.concat()});
        let body = json!({"messages": [message, message], "max_tokens": 7, "ignore_eos": true, "stop": text.concat()});
        let mut body = body.to_string().into_bytes();
        for (place, byte) in changes {
            let place = place.index(body.len());
            body[place] = byte;
        }
        if is_cut {
            body.truncate(length.index(body.len()));
        }
        let expected = (measure(&body), content(Endpoint::Chat, &body));
        prop_assert_eq!(measured_content(Endpoint::Chat, &body), expected, "{}", String::from_utf8_lossy(&body));
    }
}
