//! The bytes of an answer, key for key in the order of vLLM.

use serde_json::Value;

use super::request::Endpoint;

/// The last event of every stream.
pub(super) const DONE: &str = "data: [DONE]\n\n";

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finish {
    /// All was said.
    Stop,
    /// `max_tokens` was reached.
    Length,
}

impl Finish {
    fn quoted(self) -> &'static str {
        match self {
            Self::Stop => r#""stop""#,
            Self::Length => r#""length""#,
        }
    }
}

/// Token counts of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt_tokens: u64,
    pub(super) completion_tokens: u64,
}

impl Usage {
    /// The fields without the braces around them.
    fn fields(self) -> String {
        let Self { prompt_tokens, completion_tokens } = self;
        let total_tokens = prompt_tokens + completion_tokens;
        format!(
            r#""prompt_tokens":{prompt_tokens},"total_tokens":{total_tokens},"completion_tokens":{completion_tokens}"#
        )
    }
}

/// What all parts of one answer have in common. All texts are JSON strings, quotes included.
#[derive(Debug)]
pub(super) struct Reply {
    endpoint: Endpoint,
    id: String,
    created: u64,
    model: String,
    fingerprint: String,
}

impl Reply {
    /// An answer to the request `request_id`, made at `created` (seconds since 1970) by the server `fingerprint`.
    pub(super) fn new(endpoint: Endpoint, request_id: &str, created: u64, model: &str, fingerprint: &str) -> Self {
        let prefix = match endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completions => "cmpl",
        };
        Self {
            endpoint,
            id: quoted(&format!("{prefix}-{request_id}")),
            created,
            model: quoted(model),
            fingerprint: quoted(fingerprint),
        }
    }

    /// The answer in one piece.
    pub(super) fn whole(&self, text: &str, finish: Finish, usage: Usage) -> String {
        let (text, finish, fingerprint, usage) = (quoted(text), finish.quoted(), &self.fingerprint, usage.fields());
        let choice = match self.endpoint {
            Endpoint::Chat => format!(
                r#"{{"index":0,"message":{{"role":"assistant","content":{text},"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null}},"logprobs":null,"finish_reason":{finish},"stop_reason":null,"token_ids":null,"routed_experts":null}}"#
            ),
            Endpoint::Completions => format!(
                r#"{{"index":0,"text":{text},"logprobs":null,"finish_reason":{finish},"stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}}"#
            ),
        };
        let (object, prompt) = match self.endpoint {
            Endpoint::Chat => {
                ("chat.completion", r#","prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null"#)
            }
            Endpoint::Completions => ("text_completion", ""),
        };
        let head = self.head(object);
        format!(
            r#"{head},"choices":[{choice}],"service_tier":null,"system_fingerprint":{fingerprint},"usage":{{{usage},"prompt_tokens_details":null,"completion_tokens_details":null}}{prompt},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}}"#
        )
    }

    /// The event that opens a stream together with the first token: chat names the role.
    pub(super) fn opening_event(&self) -> Option<String> {
        (self.endpoint == Endpoint::Chat).then(|| {
            let choice =
                r#"{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}"#;
            self.event(choice, r#","prompt_token_ids":null,"prompt_text":null"#)
        })
    }

    /// The event of one token, which may be the last one of the answer (`finish`) and of the stream (`closing`).
    pub(super) fn token_event(&self, token: &str, finish: Option<Finish>, closing: bool) -> String {
        let token = quoted(token);
        let reason = finish.map_or("null", Finish::quoted);
        let choice = match self.endpoint {
            Endpoint::Chat => {
                let stop = if finish.is_some() { r#","stop_reason":null"# } else { "" };
                format!(
                    r#"{{"index":0,"delta":{{"content":{token}}},"logprobs":null,"finish_reason":{reason}{stop},"token_ids":null}}"#
                )
            }
            Endpoint::Completions => format!(
                r#"{{"index":0,"text":{token},"logprobs":null,"finish_reason":{reason},"stop_reason":null,"prompt_token_ids":null,"token_ids":null}}"#
            ),
        };
        let fingerprint =
            if closing { format!(r#","system_fingerprint":{}"#, self.fingerprint) } else { String::new() };
        self.event(&choice, &fingerprint)
    }

    /// The event that tells the token counts. It closes the stream.
    pub(super) fn usage_event(&self, usage: Usage) -> String {
        self.event("", &format!(r#","usage":{{{}}},"system_fingerprint":{}"#, usage.fields(), self.fingerprint))
    }

    fn event(&self, choice: &str, more: &str) -> String {
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        };
        format!("data: {},\"choices\":[{choice}]{more}}}\n\n", self.head(object))
    }

    fn head(&self, object: &str) -> String {
        let Self { id, created, model, .. } = self;
        format!(r#"{{"id":{id},"object":"{object}","created":{created},"model":{model}"#)
    }
}

/// The list of models: the one that is served.
pub(super) fn models(model: &str, max_model_len: u64, created: u64) -> String {
    let model = quoted(model);
    format!(
        r#"{{"object":"list","data":[{{"id":{model},"object":"model","created":{created},"owned_by":"vllm","root":{model},"parent":null,"max_model_len":{max_model_len},"permission":[{{"id":"modelperm-demo","object":"model_permission","created":{created},"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}}]}}]}}"#
    )
}

/// How busy the engine is, under the names of vLLM.
pub(super) fn metrics(model: &str, running: usize, waiting: usize) -> String {
    let mut page = String::new();
    for (name, help, value) in [
        ("running", "Number of requests in model execution batches.", running),
        ("waiting", "Number of requests waiting to be processed.", waiting),
    ] {
        let (metric, model) = (format!("vllm:num_requests_{name}"), quoted(model));
        page += &format!("# HELP {metric} {help}\n# TYPE {metric} gauge\n");
        page += &format!("{metric}{{engine=\"0\",model_name={model}}} {value}.0\n");
    }
    page
}

/// A text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    // The expected texts are those that a vLLM 0.32.0 sent, with the server's fingerprint in the place of its own.

    const USAGE: Usage = Usage { prompt_tokens: 20, completion_tokens: 12 };

    fn chat() -> Reply {
        Reply::new(Endpoint::Chat, "9d50", 1_795_960_965, "tiny", "demo-a")
    }

    fn completion() -> Reply {
        Reply::new(Endpoint::Completions, "9c71", 1_795_960_926, "tiny", "demo-a")
    }

    #[test]
    fn a_whole_chat_has_the_bytes_of_vllm() {
        assert_eq!(
            chat().whole("a \"b\"", Finish::Length, USAGE),
            r#"{"id":"chatcmpl-9d50","object":"chat.completion","created":1795960965,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"a \"b\"","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"demo-a","usage":{"prompt_tokens":20,"total_tokens":32,"completion_tokens":12,"prompt_tokens_details":null,"completion_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#
        );
    }

    #[test]
    fn a_whole_completion_has_the_bytes_of_vllm() {
        assert_eq!(
            completion().whole("x", Finish::Stop, USAGE),
            r#"{"id":"cmpl-9c71","object":"text_completion","created":1795960926,"model":"tiny","choices":[{"index":0,"text":"x","logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"demo-a","usage":{"prompt_tokens":20,"total_tokens":32,"completion_tokens":12,"prompt_tokens_details":null,"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#
        );
    }

    #[test]
    fn a_chat_stream_has_the_events_of_vllm() {
        let chat = chat();
        assert_eq!(
            chat.opening_event().unwrap(),
            "data: {\"id\":\"chatcmpl-9d50\",\"object\":\"chat.completion.chunk\",\"created\":1795960965,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}],\"prompt_token_ids\":null,\"prompt_text\":null}\n\n"
        );
        assert_eq!(
            chat.token_event("ating", None, false),
            "data: {\"id\":\"chatcmpl-9d50\",\"object\":\"chat.completion.chunk\",\"created\":1795960965,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ating\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n"
        );
        assert_eq!(
            chat.token_event(" K", Some(Finish::Length), true),
            "data: {\"id\":\"chatcmpl-9d50\",\"object\":\"chat.completion.chunk\",\"created\":1795960965,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" K\"},\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null}],\"system_fingerprint\":\"demo-a\"}\n\n"
        );
        assert_eq!(
            chat.usage_event(USAGE),
            "data: {\"id\":\"chatcmpl-9d50\",\"object\":\"chat.completion.chunk\",\"created\":1795960965,\"model\":\"tiny\",\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"total_tokens\":32,\"completion_tokens\":12},\"system_fingerprint\":\"demo-a\"}\n\n"
        );
    }

    #[test]
    fn a_completion_stream_has_the_events_of_vllm() {
        let completion = completion();
        assert_eq!(completion.opening_event(), None);
        assert_eq!(
            completion.token_event(" -", None, false),
            "data: {\"id\":\"cmpl-9c71\",\"object\":\"text_completion\",\"created\":1795960926,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"text\":\" -\",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}]}\n\n"
        );
    }

    #[test]
    fn the_list_of_models_has_the_bytes_of_vllm() {
        assert_eq!(
            models("tiny", 4_096, 1_795_960_917),
            r#"{"object":"list","data":[{"id":"tiny","object":"model","created":1795960917,"owned_by":"vllm","root":"tiny","parent":null,"max_model_len":4096,"permission":[{"id":"modelperm-demo","object":"model_permission","created":1795960917,"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}]}]}"#
        );
    }

    #[test]
    fn the_metrics_have_the_lines_of_vllm() {
        let page = metrics("tiny", 0, 0);
        assert_eq!(page.lines().count(), 6);
        let recorded = include_str!("../../tests/data/vllm-wire/get-metrics.resp");
        for line in page.lines() {
            assert!(recorded.lines().any(|recorded| recorded == line), "{line}");
        }
        assert!(metrics("tiny", 3, 2).ends_with("vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 2.0\n"));
    }
}
