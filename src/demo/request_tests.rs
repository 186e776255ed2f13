//! Tests of reading a request. The expected refusals are those that a vLLM 0.32.0 with a model `tiny` sent.

use super::*;

fn settings() -> DemoSettings {
    DemoSettings { model_name: "tiny".to_owned(), max_model_len: 4_096, ..DemoSettings::default() }
}

fn chat(body: &str) -> Result<Generation, Refusal> {
    Generation::parse(Endpoint::Chat, body.as_bytes(), &settings())
}

fn completion(body: &str) -> Result<Generation, Refusal> {
    Generation::parse(Endpoint::Completions, body.as_bytes(), &settings())
}

#[track_caller]
fn refused(outcome: Result<Generation, Refusal>, body: &str) {
    assert_eq!(outcome.unwrap_err(), Refusal { status: http::StatusCode::BAD_REQUEST, body: body.to_owned() });
}

#[test]
fn a_chat_is_measured_by_the_text_of_its_messages() {
    let body = r#"{"model":"tiny","messages":[{"role":"system","content":"12345678"},
        {"role":"user","content":[{"type":"text","text":"1234"},{"type":"image_url","image_url":{"url":"x"}}]}],
        "max_tokens":12,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}"#;
    let expected = Generation {
        endpoint: Endpoint::Chat,
        prompt_tokens: 3,
        max_tokens: 12,
        ignore_eos: true,
        stream: true,
        include_usage: true,
    };
    assert_eq!(chat(body), Ok(expected));
}

#[test]
fn a_prompt_is_a_text_or_token_ids_or_a_list_of_one() {
    for (prompt, tokens) in [(r#""12345""#, 2), ("[7,8,9]", 3), (r#"["12345678"]"#, 2), ("[[7,8,9,10]]", 4)] {
        let request = completion(&format!(r#"{{"prompt":{prompt}}}"#)).unwrap();
        assert_eq!(request.prompt_tokens, tokens, "{prompt}");
    }
}

#[test]
fn escapes_count_as_the_characters_they_stand_for() {
    assert_eq!(completion(r#"{"prompt":"\u0041\u0041\u0041\u0041"}"#).unwrap().prompt_tokens, 1);
}

#[test]
fn the_output_budget_without_max_tokens_is_16_for_text_and_the_rest_of_the_context_for_chat() {
    assert_eq!(completion(r#"{"prompt":"1234"}"#).unwrap().max_tokens, 16);
    assert_eq!(chat(r#"{"messages":[{"role":"user","content":"1234"}]}"#).unwrap().max_tokens, 4_095);
    assert_eq!(completion(r#"{"prompt":"1234","max_tokens":null}"#).unwrap().max_tokens, 16);
}

#[test]
fn an_answer_never_outgrows_the_context() {
    let prompt = "x".repeat(4 * 4_000);
    let request = completion(&format!(r#"{{"prompt":"{prompt}","max_tokens":200}}"#)).unwrap();
    assert_eq!((request.prompt_tokens, request.max_tokens), (4_000, 96));
}

#[test]
fn max_completion_tokens_goes_before_max_tokens() {
    let body = r#"{"messages":[{"role":"user","content":"x"}],"max_tokens":5,"max_completion_tokens":7}"#;
    assert_eq!(chat(body).unwrap().max_tokens, 7);
}

#[test]
fn what_vllm_forgives_is_forgiven() {
    let lenient = [
        r#"{"prompt":"x","max_tokens":"12"}"#,
        r#"{"model":"nope","model":"tiny","prompt":"x","max_tokens":12}"#,
        "\u{feff}{\"prompt\":\"x\",\"max_tokens\":12,\"surprise\":1}",
    ];
    for body in lenient {
        assert_eq!(completion(body).map(|request| request.max_tokens), Ok(12), "{body}");
    }
}

#[test]
fn a_body_that_is_no_object_is_refused_in_the_words_of_vllm() {
    refused(
        chat(""),
        r#"{"error":{"message":"1 validation error:\n  {'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}","type":"Bad Request","param":"body","code":400}}"#,
    );
    refused(
        chat("[]"),
        r#"{"error":{"message":"1 validation error:\n  {'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be a valid dictionary or object to extract fields from', 'input': '<list of 0 items>'}","type":"Bad Request","param":"body","code":400}}"#,
    );
}

#[test]
fn broken_json_is_refused_with_the_place_of_the_error() {
    let refusal = chat(r#"{"model": "tiny", "#).unwrap_err();
    assert_eq!(refusal.status, http::StatusCode::BAD_REQUEST);
    assert!(refusal.body.contains(r#""param":"body.18""#), "{}", refusal.body);
    let refusal = chat("{\n\n\"model\" \"tiny\"}").unwrap_err();
    assert!(refusal.body.contains(r#""param":"body.12""#), "{}", refusal.body);
}

#[test]
fn a_missing_prompt_is_refused_in_the_words_of_vllm() {
    refused(
        chat(r#"{"model": "tiny", "max_tokens": 12, "temperature": 0, "ignore_eos": true}"#),
        r#"{"error":{"message":"1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': '<dict of 4 items>'}","type":"Bad Request","param":"body.messages","code":400}}"#,
    );
    let no_prompt = r#"{"error":{"message":"Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)","type":"BadRequestError","param":"prompt","code":400}}"#;
    for body in [r#"{"model":"tiny"}"#, r#"{"prompt":""}"#, r#"{"prompt":[]}"#, r#"{"prompt":[""]}"#, r#"{"prompt":7}"#]
    {
        refused(completion(body), no_prompt);
    }
}

#[test]
fn an_impossible_max_tokens_is_refused_in_the_words_of_vllm() {
    refused(
        completion(r#"{"prompt":"x","max_tokens":-1}"#),
        r#"{"error":{"message":"max_tokens must be at least 1, got -1. (parameter=max_tokens, value=-1)","type":"BadRequestError","param":"max_tokens","code":400}}"#,
    );
    refused(
        completion(r#"{"prompt":"x","max_tokens":100000}"#),
        r#"{"error":{"message":"max_tokens=100000 cannot be greater than max_model_len=4096. Please request fewer output tokens. (parameter=max_tokens, value=100000)","type":"BadRequestError","param":"max_tokens","code":400}}"#,
    );
    for value in ["1.5", "true", "[]", r#""many""#, "1e400"] {
        let refusal = completion(&format!(r#"{{"prompt":"x","max_tokens":{value}}}"#)).unwrap_err();
        assert_eq!(refusal.status, http::StatusCode::BAD_REQUEST, "{value}");
    }
}

#[test]
fn the_longest_prompt_is_served_and_one_token_more_is_refused() {
    let fits = "x".repeat(4 * 4_096);
    assert!(completion(&format!(r#"{{"prompt":"{fits}"}}"#)).is_ok());
    let refusal = completion(&format!(r#"{{"prompt":"{fits}x"}}"#)).unwrap_err();
    assert_eq!(refusal, Refusal::prompt_too_long(4_096));
}

#[test]
fn another_model_is_refused_and_no_model_is_served() {
    assert_eq!(completion(r#"{"model":"nope","prompt":"x"}"#), Err(Refusal::model("nope", "tiny")));
    assert!(completion(r#"{"prompt":"x"}"#).is_ok());
}

#[test]
fn several_answers_and_several_prompts_are_refused() {
    for body in [r#"{"prompt":"x","n":2}"#, r#"{"prompt":["x","y"]}"#, r#"{"prompt":[[1],[2]]}"#] {
        let refusal = completion(body).unwrap_err();
        assert!(refusal.body.contains("demo server"), "{body}: {}", refusal.body);
    }
}
