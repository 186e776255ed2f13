//! The admin listener of a running Tidegate, for commands that ask it something.

use std::io::Read;
use std::time::Duration;

use serde_json::Value;

/// An answer that takes longer does not come.
const WITHIN: Duration = Duration::from_secs(10);

/// A running Tidegate.
#[derive(Clone)]
pub struct Remote {
    admin: String,
    token: Option<String>,
    agent: ureq::Agent,
}

/// Why a running Tidegate gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// It cannot be reached.
    #[error("no answer from the admin listener at {admin}: {error}; is it there? --admin HOST:PORT says where")]
    NoAnswer {
        /// Where it should be.
        admin: String,
        /// What is wrong.
        error: String,
    },
    /// It wants a token, or another one.
    #[error("the admin listener at {admin} wants its token: --token-env NAME says which variable has it")]
    Token {
        /// Where it is.
        admin: String,
    },
    /// It refuses.
    #[error("{admin} answers {status}: {message}")]
    Refused {
        /// Where it is.
        admin: String,
        /// The status.
        status: u16,
        /// What it says.
        message: String,
    },
    /// The variable that should have the token does not.
    #[error("the environment variable {name} is not set")]
    NoToken {
        /// Its name.
        name: String,
    },
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("admin", &self.admin).finish_non_exhaustive()
    }
}

impl Remote {
    /// The Tidegate whose admin listener is at `admin` (`host:port`), with its token if a variable has one.
    ///
    /// # Errors
    /// When the variable is not set.
    pub fn new(admin: &str, token_env: Option<&str>) -> Result<Self, RemoteError> {
        let token = token_env
            .map(|name| std::env::var(name).map_err(|_| RemoteError::NoToken { name: name.to_owned() }))
            .transpose()?;
        let config = ureq::Agent::config_builder().timeout_global(Some(WITHIN)).http_status_as_error(false).proxy(None);
        Ok(Self { admin: admin.to_owned(), token, agent: config.build().into() })
    }

    /// Where its admin listener is.
    #[must_use]
    pub fn admin(&self) -> &str {
        &self.admin
    }

    /// Its token, if one is known.
    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// What a page says, as JSON.
    ///
    /// # Errors
    /// When there is no such answer.
    pub fn get(&self, path: &str) -> Result<Value, RemoteError> {
        let request = self.agent.get(self.url(path));
        self.read(self.with_token(request).call())
    }

    /// What a page says to a body, as JSON.
    ///
    /// # Errors
    /// When there is no such answer.
    pub fn post(&self, path: &str, body: &[u8]) -> Result<Value, RemoteError> {
        let request = self.agent.post(self.url(path)).content_type("application/json");
        self.read(self.with_token(request).send(body))
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.admin)
    }

    fn with_token<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    fn read(&self, answer: Result<http::Response<ureq::Body>, ureq::Error>) -> Result<Value, RemoteError> {
        let no_answer = |error: String| RemoteError::NoAnswer { admin: self.admin.clone(), error };
        let answer = answer.map_err(|error| no_answer(error.to_string()))?;
        let status = answer.status().as_u16();
        let mut text = Vec::new();
        answer.into_body().into_reader().read_to_end(&mut text).map_err(|error| no_answer(error.to_string()))?;
        if status == 401 {
            return Err(RemoteError::Token { admin: self.admin.clone() });
        }
        let json: Value = serde_json::from_slice(&text).map_err(|_| no_answer("it is no Tidegate's".to_owned()))?;
        if status == 200 {
            return Ok(json);
        }
        let message = json["error"]["message"].as_str().unwrap_or_default().to_owned();
        Err(RemoteError::Refused { admin: self.admin.clone(), status, message })
    }
}
