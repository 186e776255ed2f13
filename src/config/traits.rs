//! What tells servers from each other, for the policies by work: keys of a server and, for all of its servers, of a group.

use super::problem::Located;
use super::section::{Parsed, Section, or_none};
use super::value;
use super::yaml::Node;
use crate::work::{Prefers, ServerTraits};

const PREFERS: [(&str, Option<Prefers>); 3] =
    [("long", Some(Prefers::Long)), ("short", Some(Prefers::Short)), ("none", None)];

/// The most tokens of a request with its answer that a server takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MaxModelLen {
    /// As the server says (`GET /v1/models`); without a limit until it has said so, and when it is not asked.
    #[default]
    Auto,
    /// Without a limit that is known.
    Unknown,
    /// So many.
    Tokens(u64),
}

/// What tells a server from others, as configured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traits {
    /// The most tokens of a request with its answer.
    pub max_model_len: MaxModelLen,
    /// Tokens that its KV cache holds; `None` is what the profile says.
    pub kv_tokens: Option<u64>,
    /// How fast it is beside others.
    pub speed: f64,
    /// Which prompts it is meant for, if any in particular.
    pub prefers: Option<Prefers>,
}

impl Default for Traits {
    fn default() -> Self {
        let ServerTraits { kv_tokens, speed, prefers, .. } = ServerTraits::default();
        Self { max_model_len: MaxModelLen::Auto, kv_tokens, speed, prefers }
    }
}

impl Traits {
    /// What the policies go by, given what the server has said of `max_model_len`.
    #[must_use]
    pub fn resolved(&self, reported_max_model_len: Option<u64>) -> ServerTraits {
        let Self { max_model_len, kv_tokens, speed, prefers } = *self;
        let max_model_len = match max_model_len {
            MaxModelLen::Auto => reported_max_model_len,
            MaxModelLen::Unknown => None,
            MaxModelLen::Tokens(tokens) => Some(tokens),
        };
        ServerTraits { max_model_len, kv_tokens, speed, prefers, ..ServerTraits::default() }
    }
}

/// What a group or a server says; `None` is what stands above.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OwnTraits {
    max_model_len: Option<MaxModelLen>,
    kv_cache_tokens: Option<Option<u64>>,
    weight: Option<f64>,
    prefer: Option<Option<Prefers>>,
}

impl OwnTraits {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let tokens = or_none(value::whole(value::TOKENS));
        let given = |value: Option<Located<Option<u64>>>| value.map(|given| given.value);
        Self {
            max_model_len: section.value("max_model_len", max_model_len).map(|most| most.value),
            kv_cache_tokens: given(section.value("kv_cache_tokens", tokens)),
            weight: section.value("weight", value::weight).map(|weight| weight.value),
            prefer: section.value("prefer", value::choice(&PREFERS)).map(|prefer| prefer.value),
        }
    }

    pub(super) fn or(self, above: Traits) -> Traits {
        Traits {
            max_model_len: self.max_model_len.unwrap_or(above.max_model_len),
            kv_tokens: self.kv_cache_tokens.unwrap_or(above.kv_tokens),
            speed: self.weight.unwrap_or(above.speed),
            prefers: self.prefer.unwrap_or(above.prefers),
        }
    }
}

fn max_model_len(node: &Node) -> Parsed<MaxModelLen> {
    match node.plain() {
        Some("auto") => Ok(MaxModelLen::Auto),
        Some("none") => Ok(MaxModelLen::Unknown),
        _ => value::whole(value::TOKENS)(node)
            .map(MaxModelLen::Tokens)
            .map_err(|expected| format!("{expected}, auto, or none")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::of_text;
    use super::*;

    fn most(group: &str, server: &str) -> MaxModelLen {
        let server = format!("{{address: 'x:1'{server}}}");
        let config = of_text(&format!("groups: [{{name: a{group}, servers: [{server}]}}]\n"));
        config.groups[0].servers[0].traits.max_model_len
    }

    #[test]
    fn a_server_says_itself_how_much_it_takes_unless_it_is_configured() {
        assert_eq!(most("", ""), MaxModelLen::Auto);
        assert_eq!(most(", max_model_len: 9", ""), MaxModelLen::Tokens(9));
        assert_eq!(most(", max_model_len: 9", ", max_model_len: auto"), MaxModelLen::Auto);
        assert_eq!(most("", ", max_model_len: none"), MaxModelLen::Unknown);
    }

    #[test]
    fn what_is_configured_counts_more_than_what_a_server_says() {
        let resolved =
            |max_model_len, reported| Traits { max_model_len, ..Traits::default() }.resolved(reported).max_model_len;
        assert_eq!(resolved(MaxModelLen::Auto, None), None);
        assert_eq!(resolved(MaxModelLen::Auto, Some(7)), Some(7));
        assert_eq!(resolved(MaxModelLen::Unknown, Some(7)), None);
        assert_eq!(resolved(MaxModelLen::Tokens(9), Some(7)), Some(9));
        assert_eq!(Traits::default().resolved(None), ServerTraits::default());
    }
}
