//! Which of the servers' endpoints a request is for.

/// An endpoint class: decides whether a request takes part in the load accounting, and is a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`
    Chat,
    /// Everything that is proxied but not counted.
    Other,
}

impl Endpoint {
    /// Classifies a request by method and path (without the query).
    #[must_use]
    pub fn of(method: &http::Method, path: &str) -> Self {
        if method == http::Method::POST && path == "/v1/chat/completions" { Self::Chat } else { Self::Other }
    }

    /// Whether requests of this class take part in the load accounting.
    #[must_use]
    pub fn is_generation(self) -> bool {
        self != Self::Other
    }

    /// The name of the class in metrics and logs.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Other => "other",
        }
    }
}
