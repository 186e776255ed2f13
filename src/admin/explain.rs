//! `POST /explain`: why a request would go where it would go.

use std::time::Duration;

use http::{Response, StatusCode};
use pingora::protocols::http::ServerSession;
use tokio::time::timeout;

use super::change::parameter;
use super::{JSON, error, page};
use crate::explain::explain;
use crate::upstream::Live;

/// A body that takes longer to arrive is not waited for.
const BODY_WITHIN: Duration = Duration::from_secs(30);

/// Reads the question and answers it. `?path=/v1/completions` says which endpoint the body is for, where it does not tell
/// that itself.
pub(super) async fn answer(live: &Live, session: &mut ServerSession) -> Response<Vec<u8>> {
    let most_bytes = live.get().config.max_body_bytes;
    let body = match timeout(BODY_WITHIN, read(session, most_bytes)).await {
        Ok(Ok(Some(body))) => body,
        Ok(Ok(None)) => {
            session.set_keepalive(None);
            let message = format!("the body is larger than limits.max_body_size, {most_bytes} bytes");
            return error(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", &message);
        }
        Ok(Err(_)) | Err(_) => {
            session.set_keepalive(None);
            return error(StatusCode::BAD_REQUEST, "bad_body", "the body did not arrive");
        }
    };
    let query = session.req_header().uri.query();
    let path = query.and_then(|query| parameter(query, "path"));
    match explain(live, path.as_deref(), &body) {
        Ok(answer) => {
            let mut json = serde_json::to_vec_pretty(&answer).expect("all keys are strings and no value can fail");
            json.push(b'\n');
            page(StatusCode::OK, JSON, json)
        }
        Err(why) => error(StatusCode::BAD_REQUEST, "bad_question", &why.to_string()),
    }
}

/// The whole body; `None` when it has more bytes than that.
async fn read(session: &mut ServerSession, most_bytes: usize) -> pingora::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    while let Some(piece) = session.read_request_body().await? {
        if body.len() + piece.len() > most_bytes {
            return Ok(None);
        }
        body.extend_from_slice(&piece);
    }
    Ok(Some(body))
}
