//! Measures with the reader of `serde_json`: what [`measure`](super::measure) is held against.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{BYTE_ORDER_MARK, Demand, budget, is_truthy};

pub(super) fn measure(body: &[u8]) -> Demand {
    let mut demand = Demand::of_bytes(body.len() as u64);
    let json = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
    // An error says only that reading stopped there: what was read before stays.
    drop(serde_json::Deserializer::from_slice(json).deserialize_map(TopLevel { demand: &mut demand }));
    demand
}

/// Fills a demand from the top level of a body.
struct TopLevel<'a> {
    demand: &'a mut Demand,
}

impl<'de> Visitor<'de> for TopLevel<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Key>()? {
            match key {
                Key::MaxTokens => self.demand.max_tokens = budget(map.next_value::<&RawValue>()?.get()),
                Key::IgnoreEos => self.demand.ignore_eos = is_truthy(map.next_value::<&RawValue>()?.get()),
                Key::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// A key, compared where it stands in the body; nothing is copied unless it is written with escapes.
enum Key {
    MaxTokens,
    IgnoreEos,
    Other,
}

impl<'de> serde::Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;

        impl Visitor<'_> for KeyVisitor {
            type Value = Key;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a key")
            }

            fn visit_str<E>(self, key: &str) -> Result<Key, E> {
                Ok(match key {
                    "max_tokens" => Key::MaxTokens,
                    "ignore_eos" => Key::IgnoreEos,
                    _ => Key::Other,
                })
            }
        }

        deserializer.deserialize_str(KeyVisitor)
    }
}
