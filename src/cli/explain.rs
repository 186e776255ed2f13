//! The flags of `tidegate explain`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

/// Why a request would go where it would go.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(group(ArgGroup::new("question").required(true).args(["body", "prompt_tokens"])))]
pub struct ExplainArgs {
    /// File with the request's JSON body; - is the standard input
    #[arg(value_name = "BODY")]
    pub body: Option<PathBuf>,
    /// Ask for a prompt of this length instead of a body
    #[arg(long, value_name = "TOKENS")]
    pub prompt_tokens: Option<u64>,
    /// Most tokens that it may generate
    #[arg(long, value_name = "TOKENS", requires = "prompt_tokens")]
    pub max_tokens: Option<u64>,
    /// Path that the body would be sent to, where the body does not tell: /v1/completions
    #[arg(long, value_name = "PATH", requires = "body")]
    pub path: Option<String>,
    /// The admin listener of the running Tidegate that is asked
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// Ask no running one: this configuration, with the loads given
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["admin", "token_env"])]
    pub conf: Option<PathBuf>,
    /// A request of so many prompt tokens that runs on a server; may be given several times
    #[arg(long = "load", value_name = "SERVER=TOKENS", requires = "conf", value_parser = load)]
    pub loads: Vec<(String, u64)>,
    /// Print the whole answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// A running Tidegate.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct RemoteArgs {
    /// Where its admin listener is
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9400")]
    pub admin: String,
    /// Environment variable with the admin token
    #[arg(long, value_name = "NAME")]
    pub token_env: Option<String>,
}

fn load(text: &str) -> Result<(String, u64), String> {
    let (server, tokens) = text.rsplit_once('=').ok_or("expected SERVER=TOKENS")?;
    let tokens = tokens.parse().map_err(|_| "expected SERVER=TOKENS, with a whole number of tokens")?;
    Ok((server.to_owned(), tokens))
}
