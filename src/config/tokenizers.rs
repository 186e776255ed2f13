//! `policy.tokenizers`: the tokenizers of models, for exact lengths of prompts.

use std::path::PathBuf;
use std::sync::Arc;

use super::problem::{Located, Problems};
use super::section::Section;
use super::value;
use crate::prompt::{ExactCounter, MediaCosts};

/// The tokenizer of a model.
#[derive(Debug, Clone)]
pub struct ModelTokenizer {
    /// The model's name in requests; `None`: all others.
    pub model: Option<String>,
    /// Its `tokenizer.json`.
    pub file: PathBuf,
    /// Counts with it.
    pub counter: Arc<ExactCounter>,
}

#[derive(Debug)]
pub(super) struct TokenizerDraft {
    model: Option<Located<String>>,
    file: Option<Located<String>>,
}

/// Reads the list; absent is empty.
pub(super) fn read(section: &mut Section<'_>) -> Vec<TokenizerDraft> {
    let items = section.list("tokenizers", "tokenizers").unwrap_or_default();
    let item = |section: &mut Section<'_>| TokenizerDraft {
        model: section.required("model", value::text),
        file: section.required("file", value::text),
    };
    items.iter().map(|listed| listed.section(item)).collect()
}

/// Reads the files, which takes about a second each.
pub(super) fn load(drafts: &[TokenizerDraft], media: MediaCosts, problems: &Problems) -> Vec<ModelTokenizer> {
    let mut loaded: Vec<ModelTokenizer> = Vec::new();
    for TokenizerDraft { model, file } in drafts {
        let (Some(model), Some(file)) = (model, file) else { continue };
        let name = Some(&model.value).filter(|name| *name != "any").cloned();
        if loaded.iter().any(|other| other.model == name) {
            problems.error(&model.spot, format!("found {} again, expected each model once", model.value));
            continue;
        }
        let bytes = std::fs::read(&file.value).map_err(|error| error.to_string());
        let counter = bytes.and_then(|bytes| ExactCounter::from_json(&bytes, media).map_err(|error| error.to_string()));
        match counter {
            Ok(counter) => {
                loaded.push(ModelTokenizer { model: name, file: file.value.clone().into(), counter: Arc::new(counter) })
            }
            Err(error) => {
                problems.error(&file.spot, format!("{}: {error}, expected a model's tokenizer.json", file.value))
            }
        }
    }
    loaded
}

#[cfg(test)]
mod tests {
    use super::super::{Flags, load};

    /// What is wrong with a file of which this is a part.
    fn problems(tokenizers: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!("groups: [{{name: a, servers: [x:1]}}]\npolicy:\n  tokenizers: {tokenizers}\n");
        std::fs::write(file.path(), text).unwrap();
        load(Some(file.path()), &Flags::default(), &|_| None).map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named_with_its_key() {
        assert_eq!(problems("[]"), "");
        let found = problems("[{model: m, file: /nowhere/tokenizer.json}]");
        assert!(found.contains(":3: policy.tokenizers[0].file: /nowhere/tokenizer.json: No such file"), "{found}");
        let found = problems("[{model: m, file: Cargo.toml}]");
        let why = if cfg!(feature = "exact-tokens") {
            "this is no tokenizer.json"
        } else {
            "this program was built without tokenizers: build it with --features exact-tokens"
        };
        assert!(found.contains(&format!("policy.tokenizers[0].file: Cargo.toml: {why}")), "{found}");
        assert!(problems("[{model: m}]").contains("policy.tokenizers[0].file: missing"));
    }
}
