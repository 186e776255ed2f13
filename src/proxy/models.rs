//! `GET /v1/models`: one answer for the models of all servers.
//!
//! Every server is asked at the same time, with the client's own header. What has answered in time counts; a server
//! that is down does not hold the list up. One answer, or several that are equal to the byte, is relayed as it came.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use http::{HeaderValue, StatusCode, header};
use pingora::connectors::ConnectorOptions;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::client::HttpSession;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};
use serde_json::{Value, json};

use super::admit::write_response;
use super::context::RequestContext;
use super::reject::{Reject, json_response};
use super::request::REQUEST_ID;
use super::{Proxy, guard, request, response};
use crate::tls;
use crate::upstream::Server;

/// Makes and keeps connections for requests that Tidegate makes itself.
pub(super) type Connector = pingora::connectors::http::Connector;

/// With the authorities of the system only where a server needs them (`tls`).
pub(super) fn connector(uses_system_authorities: bool) -> Connector {
    /// As many idle connections as Pingora keeps when it is not told.
    const POOL_SIZE: usize = 128;
    let ca_file = tls::authorities_file(uses_system_authorities);
    Connector::new(Some(ConnectorOptions { ca_file, ..ConnectorOptions::new(POOL_SIZE) }))
}

/// A server that has not answered by then is left out of the list.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// No list of models is longer, in bytes.
const LONGEST_LIST: usize = 4 << 20;

struct Answer {
    header: ResponseHeader,
    body: Bytes,
}

/// Answers with the merged list.
pub(super) async fn answer(proxy: &Proxy, session: &mut Session, ctx: &mut RequestContext) -> Result<bool> {
    let mut header = session.req_header().clone();
    guard::tell_origin(session, &mut header, ctx)?;
    let request_id = ctx.request_id.clone();
    let in_force = Arc::clone(&ctx.in_force);
    let live = in_force.servers().filter(|server| server.standing().is_live());
    let all = join_all(live.map(|server| ask(proxy, server, &header, ctx)));
    let answers: Vec<Answer> = tokio::select! {
        biased;
        gone = session.downstream_session.read_body_or_idle(true) => {
            return Err(gone.err().unwrap_or_else(|| Error::new(ErrorType::ConnectionClosed)).into_down());
        }
        answers = all => answers.into_iter().flatten().collect(),
    };
    let Some(Answer { mut header, body }) = merge(answers, request_id.as_ref())? else {
        proxy.reject(session, ctx, Reject::NotReachable).await?;
        return Ok(true);
    };
    guard::share(session.req_header(), &mut header, ctx)?;
    write_response(session, ctx, header, body).await?;
    Ok(true)
}

/// One server's answer; `None` when it gave none.
async fn ask(proxy: &Proxy, server: &Server, request: &RequestHeader, ctx: &RequestContext) -> Option<Answer> {
    let mut request = request.clone();
    let asked = async {
        as_own_request(&mut request);
        request::address_to(server, &mut request, ctx)?;
        // A kept connection may have been closed by the server at this very moment.
        match exchange(proxy, server, &request, ctx).await {
            Err(_) => exchange(proxy, server, &request, ctx).await,
            answered => answered,
        }
    };
    match tokio::time::timeout(ANSWER_WITHIN, asked).await {
        Ok(Ok(answer)) => Some(answer),
        Ok(Err(error)) => {
            log::debug!("server {} gave no list of models: {error}", server.name());
            None
        }
        Err(_) => {
            log::debug!("server {} gave no list of models within {ANSWER_WITHIN:?}", server.name());
            None
        }
    }
}

async fn exchange(proxy: &Proxy, server: &Server, request: &RequestHeader, ctx: &RequestContext) -> Result<Answer> {
    let timeouts = &ctx.config().timeouts;
    let peer = server.peer(server.address(timeouts.connect).await?, timeouts);
    let (mut session, _reused) =
        proxy.connector.get_http_session(&peer).await.inspect_err(|error| server.note_tls_failure(error))?;
    session.write_request_header(Box::new(request.clone())).await?;
    session.finish_request_body().await?;
    session.read_response_header().await?;
    let header = session
        .response_header()
        .cloned()
        .ok_or_else(|| Error::explain(ErrorType::H1Error, "an answer without a header"))?;
    let body = read_body(&mut session).await?;
    proxy.connector.release_http_session(session, &peer, Some(timeouts.server_keepalive)).await;
    Ok(Answer { header, body })
}

async fn read_body(session: &mut HttpSession) -> Result<Bytes> {
    let mut body = BytesMut::new();
    while let Some(piece) = session.read_response_body().await? {
        body.extend_from_slice(&piece);
        if body.len() > LONGEST_LIST {
            return Error::e_explain(ErrorType::H1Error, "a list of models beyond all measure");
        }
    }
    Ok(body.freeze())
}

/// The good answers as one; a bad one only where there is no good one.
fn merge(answers: Vec<Answer>, request_id: Option<&HeaderValue>) -> Result<Option<Answer>> {
    let (mut good, bad): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|answer| answer.header.status == StatusCode::OK);
    if good.windows(2).all(|pair| pair[0].body == pair[1].body) {
        good.truncate(1);
        return good.pop().or_else(|| bad.into_iter().next()).map(|answer| relayed(answer, request_id)).transpose();
    }
    let list = json!({ "object": "list", "data": merge_lists(good.iter().map(|answer| &answer.body[..])) });
    let (header, body) = json_response(StatusCode::OK, &list, request_id)?;
    Ok(Some(Answer { header, body }))
}

/// The models of all lists in the order of the servers, each id once.
fn merge_lists<'a>(lists: impl Iterator<Item = &'a [u8]>) -> Vec<Value> {
    let mut models: Vec<Value> = Vec::new();
    for list in lists {
        let Ok(mut list) = serde_json::from_slice::<Value>(list) else { continue };
        let Some(data) = list.get_mut("data").and_then(Value::as_array_mut) else { continue };
        for model in data.drain(..) {
            if !models.iter().any(|known| known.get("id") == model.get("id")) {
                models.push(model);
            }
        }
    }
    models
}

fn relayed(mut answer: Answer, request_id: Option<&HeaderValue>) -> Result<Answer> {
    response::strip_hop_by_hop(&mut answer.header);
    answer.header.remove_header(&header::TRANSFER_ENCODING);
    answer.header.insert_header(header::CONTENT_LENGTH, answer.body.len())?;
    if let Some(request_id) = request_id
        && !answer.header.headers.contains_key(REQUEST_ID)
    {
        answer.header.insert_header(REQUEST_ID, request_id)?;
    }
    Ok(answer)
}

/// Makes the client's header one of a request without a body on a connection of our own.
fn as_own_request(request: &mut RequestHeader) {
    for name in ["connection", "keep-alive", "proxy-connection", "te", "trailer", "upgrade", "http2-settings"] {
        request.remove_header(name);
    }
    request.remove_header(&header::TRANSFER_ENCODING);
    request.remove_header(&header::CONTENT_LENGTH);
    request.remove_header(&header::EXPECT);
    request.set_version(http::Version::HTTP_11);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &'static str) -> Answer {
        Answer { header: ResponseHeader::build(status, None).unwrap(), body: Bytes::from_static(body.as_bytes()) }
    }

    fn merged(answers: Vec<Answer>) -> Option<(u16, String)> {
        let answer = merge(answers, None).unwrap()?;
        Some((answer.header.status.as_u16(), String::from_utf8(answer.body.to_vec()).unwrap()))
    }

    #[test]
    fn each_model_is_listed_once_in_the_order_of_the_servers() {
        let merged = merged(vec![
            answer(200, r#"{"object":"list","data":[{"id":"b","created":1},{"id":"a"}]}"#),
            answer(200, r#"{"object":"list","data":[{"id":"b","created":2},{"id":"c"}]}"#),
        ]);
        let list = r#"{"object":"list","data":[{"id":"b","created":1},{"id":"a"},{"id":"c"}]}"#;
        assert_eq!(merged, Some((200, list.to_owned())));
    }

    #[test]
    fn equal_answers_are_relayed_to_the_byte() {
        let list = r#"{ "data": [ ] }"#;
        assert_eq!(merged(vec![answer(200, list), answer(200, list)]), Some((200, list.to_owned())));
    }

    #[test]
    fn a_good_answer_counts_more_than_a_bad_one() {
        let merged = merged(vec![answer(401, "no"), answer(200, "{}")]);
        assert_eq!(merged, Some((200, "{}".to_owned())));
    }

    #[test]
    fn without_a_good_answer_the_first_bad_one_is_relayed() {
        assert_eq!(merged(vec![answer(401, "no"), answer(503, "busy")]), Some((401, "no".to_owned())));
        assert_eq!(merged(vec![]), None);
    }

    #[test]
    fn an_answer_that_is_no_list_is_left_out() {
        let merged = merged(vec![answer(200, "<html>"), answer(200, r#"{"data":[{"id":"a"}]}"#)]);
        assert_eq!(merged, Some((200, r#"{"object":"list","data":[{"id":"a"}]}"#.to_owned())));
    }
}
