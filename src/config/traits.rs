//! What tells servers from each other, for the policies by work: keys of a server and, for all of its servers, of a group.

use super::problem::Located;
use super::section::{Section, or_none};
use super::value;
use crate::work::{Prefers, ServerTraits};

const PREFERS: [(&str, Option<Prefers>); 3] =
    [("long", Some(Prefers::Long)), ("short", Some(Prefers::Short)), ("none", None)];

/// What a group or a server says; `None` is what stands above.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OwnTraits {
    max_model_len: Option<Option<u64>>,
    kv_cache_tokens: Option<Option<u64>>,
    weight: Option<f64>,
    prefer: Option<Option<Prefers>>,
}

impl OwnTraits {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let tokens = || or_none(value::whole(value::TOKENS));
        let given = |value: Option<Located<Option<u64>>>| value.map(|given| given.value);
        Self {
            max_model_len: given(section.value("max_model_len", tokens())),
            kv_cache_tokens: given(section.value("kv_cache_tokens", tokens())),
            weight: section.value("weight", value::weight).map(|weight| weight.value),
            prefer: section.value("prefer", value::choice(&PREFERS)).map(|prefer| prefer.value),
        }
    }

    pub(super) fn or(self, above: ServerTraits) -> ServerTraits {
        ServerTraits {
            max_model_len: self.max_model_len.unwrap_or(above.max_model_len),
            kv_tokens: self.kv_cache_tokens.unwrap_or(above.kv_tokens),
            speed: self.weight.unwrap_or(above.speed),
            prefers: self.prefer.unwrap_or(above.prefers),
            ..above
        }
    }
}
