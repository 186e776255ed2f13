//! What is read of a server's `/v1/models`. Pure.

use serde::Deserialize;
use serde_json::Value;

use crate::config::value::TOKENS;

#[derive(Deserialize)]
struct List {
    data: Vec<Card>,
}

#[derive(Deserialize)]
struct Card {
    /// LoRA adapters have null.
    #[serde(default)]
    max_model_len: Value,
}

/// The most tokens that a request to the server may have, with its answer: that of the largest of its models. `None` when
/// none says so.
///
/// # Errors
/// When this is no list of models.
pub(super) fn max_model_len(list: &[u8]) -> Result<Option<u64>, serde_json::Error> {
    let List { data } = serde_json::from_slice(list)?;
    Ok(data.iter().filter_map(|card| card.max_model_len.as_u64()).filter(|tokens| TOKENS.contains(tokens)).max())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_list_of_a_real_server_says_how_much_it_takes() {
        let response = include_str!("../../tests/data/vllm-wire/get-models.resp");
        let (_, body) = response.split_once("\r\n\r\n").unwrap();
        assert_eq!(max_model_len(body.as_bytes()).unwrap(), Some(4_096));
    }

    #[test]
    fn the_largest_of_several_models_counts_and_those_that_say_nothing_do_not() {
        let found = |cards: &str| max_model_len(format!("{{\"data\":[{cards}]}}").as_bytes()).unwrap();
        assert_eq!(found(r#"{"max_model_len":5},{"max_model_len":null},{"id":"x"},{"max_model_len":9}"#), Some(9));
        assert_eq!(found(r#"{"max_model_len":null},{"id":"x"}"#), None);
        assert_eq!(found(""), None);
        for odd in ["0", "-1", "1.5", "\"9\"", "[9]", "18446744073709551615"] {
            let cards = format!("{{\"data\":[{{\"max_model_len\":{odd}}}]}}");
            assert_eq!(max_model_len(cards.as_bytes()).unwrap(), None, "{odd}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["", "<html>", "[]", "{}", r#"{"data":{}}"#, r#"{"data":[5]}"#, r#"{"data":[{"max_model_len":1}]"#]
        {
            assert!(max_model_len(text.as_bytes()).is_err(), "{text}");
        }
        assert!(max_model_len("[".repeat(1 << 20).as_bytes()).is_err(), "however deep it is");
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop(max_model_len(&bytes));
        }
    }
}
