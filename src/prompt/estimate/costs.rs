//! What counts by the piece.

/// Tokens that media count as, whatever their size: a proxy does not decode them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaCosts {
    /// Tokens of an image.
    pub image_tokens: u64,
    /// Tokens of a sound.
    pub audio_tokens: u64,
    /// Tokens of a film.
    pub video_tokens: u64,
}

impl Default for MediaCosts {
    /// An image of 1024 x 1024 pixels in Qwen2.5-VL, which makes a token of 28 x 28 pixels: 37 x 37 = 1,369. Half a
    /// minute of sound in Qwen2-Audio, which makes 25 tokens of a second. The 32 frames that vLLM takes of a film by
    /// default, of 640 x 360 pixels in Qwen2.5-VL, which makes one of two frames: 16 x 23 x 13 = 4,784.
    fn default() -> Self {
        Self { image_tokens: 1_369, audio_tokens: 750, video_tokens: 4_784 }
    }
}

/// Tokens that a chat template puts around a message, with the name of its role: Qwen's and Llama 3's have five.
const MESSAGE_TOKENS: u64 = 5;

/// Tokens that a chat template puts around all messages: the beginning of the text and of the answer.
const CONVERSATION_TOKENS: u64 = 4;

/// Tokens of the instructions that a chat template adds when there are tools; between 60 and 150 in those of Qwen, Hermes
/// and Llama.
const TOOLS_TOKENS: u64 = 90;

/// Bytes of one embedded token: 4,096 numbers of two bytes, as 8B models have.
pub(in crate::prompt) const EMBEDDING_BYTES: u64 = 8_192;

/// Tokens that a chat template adds to so many messages of so many prompts.
pub(in crate::prompt) fn template_tokens(messages: u64, prompts: u64, has_tools: bool) -> u64 {
    let around_all = if messages > 0 { CONVERSATION_TOKENS.saturating_mul(prompts) } else { 0 };
    let for_tools = if has_tools { TOOLS_TOKENS } else { 0 };
    messages.saturating_mul(MESSAGE_TOKENS).saturating_add(around_all).saturating_add(for_tools)
}
