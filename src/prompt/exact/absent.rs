//! What stands in for tokenizers where the program was built without them.

use thiserror::Error;

use crate::prompt::{Endpoint, MediaCosts};

/// This program has no tokenizers.
#[derive(Debug, Error)]
#[error("this program was built without tokenizers: build it with --features exact-tokens")]
pub struct TokenizerError;

/// There is none.
#[derive(Debug)]
pub enum ExactCounter {}

impl ExactCounter {
    /// Would read a model's `tokenizer.json`.
    ///
    /// # Errors
    /// Always.
    pub fn from_json(_tokenizer: &[u8], _media: MediaCosts) -> Result<Self, TokenizerError> {
        Err(TokenizerError)
    }

    /// Would count the tokens of a prompt.
    ///
    /// # Errors
    /// Never: there is nobody to ask.
    pub fn prompt_tokens(&self, _endpoint: Endpoint, _body: &[u8]) -> Result<u64, TokenizerError> {
        match *self {}
    }
}
