//! Estimates how long prompts are, and learns from how long they were.

use std::collections::HashMap;
use std::sync::Arc;

use super::correction::Correction;
use super::costs::{EMBEDDING_BYTES, MediaCosts, template_tokens};
use super::errors::LengthError;
use super::estimate::{Estimate, PromptClass};
use super::ratios;
use crate::prompt::{Content, Endpoint};

/// The most models that are learned apart. What is learned of others is learned of all together.
pub const MAX_MODELS: usize = 32;

const CLASSES: usize = 3;

/// Estimates the tokens of prompts. Learns per model and [`PromptClass`] from the usage that responses carry.
///
/// A model has to be learned of once before it is known, which needs an answer of a server: names that clients make up
/// take no place. What no answer has told of a model yet is taken from what was learned of all.
#[derive(Debug, Default)]
pub struct TokenEstimator {
    media: MediaCosts,
    all: [Correction; CLASSES],
    models: HashMap<Arc<str>, [Correction; CLASSES]>,
}

/// What was learned of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Learned<'a> {
    /// The model; `None` for all together.
    pub model: Option<&'a str>,
    /// The class of endpoints.
    pub class: PromptClass,
    /// How many prompts were learned from.
    pub prompts: u64,
    /// Factor on the built-in ratios for text in Latin letters.
    pub latin_factor: f64,
    /// Factor for digits, punctuation and white space.
    pub structure_factor: f64,
    /// Factor for Chinese, Japanese and Korean text.
    pub east_asian_factor: f64,
    /// Factor for all other scripts.
    pub foreign_factor: f64,
    /// Tokens that are added to each prompt.
    pub added_tokens: f64,
    /// The median size of the last relative errors.
    pub median_error: Option<f64>,
    /// The size of error that nine of ten of the last estimates did not exceed.
    pub p90_error: Option<f64>,
}

impl TokenEstimator {
    /// An estimator that has learned nothing yet.
    #[must_use]
    pub fn new(media: MediaCosts) -> Self {
        Self { media, ..Self::default() }
    }

    /// Takes other costs of media from now on.
    pub fn set_media(&mut self, media: MediaCosts) {
        self.media = media;
    }

    /// Estimates how many tokens the prompt of a request has.
    #[must_use]
    pub fn estimate(&self, endpoint: Endpoint, content: &Content) -> Estimate {
        let class = PromptClass::of(endpoint);
        let media = &self.media;
        let media_tokens = [
            (u64::from(content.images), media.image_tokens),
            (u64::from(content.audios), media.audio_tokens),
            (u64::from(content.videos), media.video_tokens),
        ];
        let media_tokens =
            media_tokens.iter().fold(0_u64, |sum, (count, cost)| sum.saturating_add(count.saturating_mul(*cost)));
        let mut estimate = Estimate {
            model: content.model.clone(),
            class,
            text: ratios::tokens(&content.text),
            template_tokens: template_tokens(content.messages, content.prompts, content.has_tools),
            exact_tokens: content.token_ids,
            media_tokens: media_tokens.saturating_add(content.embeddings_bytes.div_ceil(EMBEDDING_BYTES)),
            is_truncated: false,
            tokens: 0,
            counted: None,
            prompts: content.prompts,
        };
        let learned = self.correction(content.model.as_deref(), class).tokens(&estimate);
        let sum = whole(learned).saturating_add(estimate.exact_tokens).saturating_add(estimate.media_tokens);
        estimate.tokens = sum.max(1);
        if let Some(most) = content.truncate_prompt_tokens.map(|each| each.saturating_mul(content.prompts))
            && sum > most
        {
            estimate.tokens = most;
            estimate.is_truncated = true;
        }
        estimate
    }

    /// How many tokens the prompt of a request is believed to have.
    #[must_use]
    pub fn prompt_tokens(&self, endpoint: Endpoint, content: &Content) -> u64 {
        self.estimate(endpoint, content).tokens()
    }

    /// Learns how many tokens a prompt had (`usage.prompt_tokens`), and says how wrong the estimate was.
    ///
    /// Nothing is learned from a prompt with media, of which only the server knows the size, from one that was cut, and
    /// from one that is mostly token ids.
    pub fn learn(&mut self, estimate: &Estimate, prompt_tokens: u64) -> LengthError {
        let error = LengthError { estimated_tokens: estimate.tokens(), counted_tokens: prompt_tokens };
        let has_place = self.models.len() < MAX_MODELS;
        let place = estimate.class as usize;
        let all = &self.all;
        let model = match &estimate.model {
            Some(name) if has_place || self.models.contains_key(name) => Some(
                self.models.entry(Arc::clone(name)).or_insert_with(|| all.each_ref().map(Correction::as_beginning)),
            ),
            _ => None,
        };
        let text_tokens = prompt_tokens.saturating_sub(estimate.exact_tokens);
        let is_telling = estimate.media_tokens == 0 && !estimate.is_truncated && text_tokens >= estimate.exact_tokens;
        for corrections in model.into_iter().chain([&mut self.all]) {
            corrections[place].note(error);
            if is_telling && text_tokens > 0 {
                #[expect(clippy::cast_precision_loss, reason = "an estimate")]
                corrections[place].learn(estimate, text_tokens as f64);
            }
        }
        error
    }

    /// Learns how many tokens several prompts had together, from a server's own counter (`vllm:prompt_tokens_total`)
    /// when its responses carry no usage. `estimates` is the [sum](Estimate) of those of the requests that the server
    /// began meanwhile.
    pub fn learn_total(&mut self, estimates: &Estimate, prompt_tokens: u64) -> LengthError {
        self.learn(estimates, prompt_tokens)
    }

    /// What was learned so far: first of all models together, then of each.
    pub fn learned(&self) -> impl Iterator<Item = Learned<'_>> {
        let models = self.models.iter().map(|(name, corrections)| (Some(&**name), corrections));
        [(None, &self.all)].into_iter().chain(models).flat_map(|(model, corrections)| {
            let classes = [PromptClass::Chat, PromptClass::Plain, PromptClass::Pooling];
            classes.into_iter().map(move |class| learned(model, class, &corrections[class as usize]))
        })
    }

    fn correction(&self, model: Option<&str>, class: PromptClass) -> &Correction {
        let known = model.and_then(|name| self.models.get(name));
        let known = known.map(|corrections| &corrections[class as usize]).filter(|known| known.learned() > 0);
        known.unwrap_or(&self.all[class as usize])
    }
}

fn learned<'a>(model: Option<&'a str>, class: PromptClass, correction: &Correction) -> Learned<'a> {
    let [latin_factor, structure_factor, east_asian_factor, foreign_factor] = correction.factors();
    Learned {
        model,
        class,
        prompts: correction.learned(),
        latin_factor,
        structure_factor,
        east_asian_factor,
        foreign_factor,
        added_tokens: correction.added_tokens(),
        median_error: correction.errors().quantile(0.5),
        p90_error: correction.errors().quantile(0.9),
    }
}

/// The nearest whole number of tokens; none below zero.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float-to-integer cast saturates")]
fn whole(tokens: f64) -> u64 {
    tokens.round() as u64
}
