//! `GET /v1/models`: one answer for the models of all servers.
//!
//! Every server is asked at the same time, with the client's own header. What has answered in time counts; a server
//! that is down does not hold the list up. One answer, or several that are equal to the byte, is relayed as it came.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::ready;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use http::{HeaderValue, StatusCode, header};
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorType, Result};
use serde_json::{Value, json};

use super::admit::{share, write_response};
use super::client::Client;
use super::context::RequestContext;
use super::reject::{Reject, json_response};
use super::relay::has_left;
use super::request::REQUEST_ID;
use super::{Proxy, request, response};
use crate::http1::{Asked, Outbound, Part};
use crate::upstream::Server;

/// A server that has not answered by then is left out of the list.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// No list of models is longer, in bytes.
const LONGEST_LIST: usize = 4 << 20;

struct Answer {
    header: ResponseHeader,
    body: Bytes,
}

/// Answers with the merged list.
pub(super) async fn answer(proxy: &Proxy, client: &mut Client<'_>, ctx: &mut RequestContext) -> Result<()> {
    let request_id = ctx.request_id.clone();
    let in_force = Arc::clone(&ctx.in_force);
    let mut questions = Vec::new();
    for server in in_force.servers().filter(|server| server.standing().is_live()) {
        questions.push((server, request::prepare(client, ctx, server, Bytes::new())?));
    }
    let all = join_all(questions.iter().map(|(server, asked)| ask(proxy, server, asked, ctx)));
    let answers: Vec<Answer> = tokio::select! {
        biased;
        () = client.gone() => return Err(has_left()),
        answers = all => answers.into_iter().flatten().collect(),
    };
    let Some(Answer { mut header, body }) = merge(answers, request_id.as_ref())? else {
        return proxy.reject(client, ctx, Reject::NotReachable).await;
    };
    share(client, &mut header, ctx);
    write_response(client, ctx, header, &body).await
}

/// One server's answer; `None` when it gave none.
async fn ask(proxy: &Proxy, server: &Server, asked: &Asked, ctx: &RequestContext) -> Option<Answer> {
    let answer = async {
        // A kept connection may have been closed by the server at this very moment.
        match exchange(proxy, server, asked, ctx).await {
            Err(_) => exchange(proxy, server, asked, ctx).await,
            answered => answered,
        }
    };
    match tokio::time::timeout(ANSWER_WITHIN, answer).await {
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

async fn exchange(proxy: &Proxy, server: &Server, asked: &Asked, ctx: &RequestContext) -> Result<Answer> {
    let timeouts = &ctx.config().timeouts;
    let address = server.address(timeouts.connect).await?;
    let connections = &proxy.servers;
    let stream = match connections.kept(server, address, timeouts) {
        Some(stream) => stream,
        None => {
            connections.connect(server, address, timeouts).await.inspect_err(|error| server.note_tls_failure(error))?
        }
    };
    let mut connection = Outbound::new(stream, asked.clone());
    let (mut header, mut body) = (None, BytesMut::new());
    while !connection.is_over() {
        poll_fn(|cx| {
            ready!(connection.poll_asked(cx))
                .map_err(|error| Error::because(ErrorType::WriteError, "asking for models", error))?;
            connection.poll_answer(cx, |_, part| {
                match part {
                    Part::Header(came, _) => header = Some(*came.header),
                    Part::Data(data, _) => body.extend_from_slice(data),
                }
                if body.len() > LONGEST_LIST {
                    return Error::e_explain(ErrorType::H1Error, "a list of models beyond all measure");
                }
                Ok(())
            })
        })
        .await?;
    }
    if let Some(stream) = connection.into_kept() {
        connections.keep(server, address, stream);
    }
    let header = header.ok_or_else(|| Error::explain(ErrorType::H1Error, "an answer without a header"))?;
    Ok(Answer { header, body: body.freeze() })
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
        && !answer.header.headers.contains_key(&REQUEST_ID)
    {
        answer.header.insert_header(&REQUEST_ID, request_id)?;
    }
    Ok(answer)
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
