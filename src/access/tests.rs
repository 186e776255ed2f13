use super::*;

fn key(name: &str, limits: KeyLimits) -> Key {
    Key { name: name.into(), digest: KeyDigest::of(format!("sk-{name}").as_bytes()), limits }
}

fn access(keys: Vec<Key>, max_concurrent_per_client: Option<usize>, now: Instant) -> Access {
    let keys = Keys::new(keys, vec!["/health".into(), "/sleep".into()], false);
    Access::new(Rules { keys, max_concurrent_per_client, ..Rules::default() }, now)
}

fn headers(key: Option<&str>) -> HeaderMap {
    let value = key.map(|key| format!("Bearer sk-{key}").parse().unwrap());
    value.into_iter().map(|value| (http::header::AUTHORIZATION, value)).collect()
}

fn ask(access: &Access, method: &Method, path: &str, key: Option<&str>, now: Instant) -> Result<Admission, Denial> {
    let peer = Some("203.0.113.9".parse().unwrap());
    let asked = Asked { method, path: path.as_bytes(), headers: &headers(key), peer };
    access.admit(&asked, now).map_err(|refused| refused.denial)
}

const CHAT: &str = "/v1/chat/completions";

#[test]
fn without_keys_everything_but_closed_paths_is_open() {
    let now = Instant::now();
    let access = access(Vec::new(), None, now);
    let admission = ask(&access, &Method::POST, CHAT, None, now).unwrap();
    assert_eq!(admission.key_name(), None);
    assert_eq!(access.charge(&admission, u64::MAX, now), Ok(()));
    for path in ["/sleep", "/Sleep%0a/"] {
        assert_eq!(ask(&access, &Method::POST, path, None, now).unwrap_err(), Denial::ClosedPath, "{path}");
    }
}

#[test]
fn with_keys_only_open_paths_go_without_and_closed_ones_stay_closed() {
    let now = Instant::now();
    let access = access(vec![key("a", KeyLimits::default())], None, now);
    assert!(ask(&access, &Method::GET, "/health", None, now).is_ok());
    assert_eq!(ask(&access, &Method::GET, "/sleep", None, now).unwrap_err(), Denial::ClosedPath);
    for path in [CHAT, "/invocations", "/tokenize", "/metrics", "/", "/unknown", "*", "/health/../invocations"] {
        assert_eq!(ask(&access, &Method::POST, path, None, now).unwrap_err(), Denial::NoKey, "{path}");
        assert_eq!(ask(&access, &Method::OPTIONS, path, None, now).unwrap_err(), Denial::NoKey, "{path}");
        assert_eq!(ask(&access, &Method::POST, path, Some("b"), now).unwrap_err(), Denial::WrongKey, "{path}");
        assert_eq!(&**ask(&access, &Method::POST, path, Some("a"), now).unwrap().key_name().unwrap(), "a", "{path}");
    }
    assert_eq!(ask(&access, &Method::POST, "/wake_up", Some("a"), now).unwrap_err(), Denial::ClosedPath);
}

#[test]
fn each_key_has_limits_of_its_own() {
    let now = Instant::now();
    let limits = KeyLimits { requests_per_minute: Some(2), tokens_per_minute: Some(100), max_concurrent: Some(1) };
    let access = access(vec![key("a", limits), key("b", KeyLimits::default())], None, now);
    let first = ask(&access, &Method::POST, CHAT, Some("a"), now).unwrap();
    let denial = ask(&access, &Method::POST, CHAT, Some("a"), now).unwrap_err();
    assert_eq!(denial, Denial::KeyConcurrency { limit: 1 });
    assert_eq!(access.charge(&first, 100, now), Ok(()));
    drop(first);
    let second = ask(&access, &Method::POST, CHAT, Some("a"), now).unwrap();
    let refused = access.charge(&second, 10, now).unwrap_err();
    assert_eq!(refused.denial, Denial::TokenRate { retry_after_seconds: 6 });
    assert_eq!(refused.key_name.as_deref(), Some("a"));
    drop(second);
    let denial = ask(&access, &Method::POST, CHAT, Some("a"), now).unwrap_err();
    assert_eq!(denial, Denial::RequestRate { retry_after_seconds: 30 });
    let others: Vec<_> = (0..10).map(|_| ask(&access, &Method::POST, CHAT, Some("b"), now).unwrap()).collect();
    assert!(others.iter().all(|other| access.charge(other, 1_000_000, now).is_ok()));
}

#[test]
fn a_refused_request_takes_no_place() {
    let now = Instant::now();
    let limits = KeyLimits { requests_per_minute: Some(1), ..KeyLimits::default() };
    let access = access(vec![key("a", limits)], Some(1), now);
    for path in ["/sleep", CHAT] {
        for wrong in [None, Some("b")] {
            ask(&access, &Method::POST, path, wrong, now).unwrap_err();
        }
    }
    assert_eq!(ask(&access, &Method::POST, "/wake_up", Some("a"), now).unwrap_err(), Denial::ClosedPath);
    let running = ask(&access, &Method::POST, CHAT, Some("a"), now).unwrap();
    let denial = ask(&access, &Method::GET, "/health", None, now).unwrap_err();
    assert_eq!(denial, Denial::ClientConcurrency { limit: 1 });
    drop(running);
    assert!(ask(&access, &Method::GET, "/health", None, now).is_ok());
}

#[test]
fn a_browsers_question_needs_no_key_but_opens_no_closed_path() {
    let now = Instant::now();
    let access = access(vec![key("a", KeyLimits::default())], None, now);
    let mut question = HeaderMap::new();
    question.insert(http::header::ORIGIN, "https://a.test".parse().unwrap());
    question.insert(http::header::ACCESS_CONTROL_REQUEST_METHOD, "POST".parse().unwrap());
    let ask = |method: &Method, path: &str| {
        let asked = Asked { method, path: path.as_bytes(), headers: &question, peer: None };
        access.admit(&asked, now).map(|admission| admission.key_name().cloned()).map_err(|refused| refused.denial)
    };
    assert_eq!(ask(&Method::OPTIONS, CHAT), Ok(None));
    assert_eq!(ask(&Method::POST, CHAT), Err(Denial::NoKey));
    assert_eq!(ask(&Method::OPTIONS, "/sleep"), Err(Denial::ClosedPath));
}

#[test]
fn clients_are_told_apart_by_address_behind_trusted_proxies_only() {
    let now = Instant::now();
    let trusted_proxies = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]);
    let rules = Rules { max_concurrent_per_client: Some(1), trusted_proxies, ..Rules::default() };
    let access = Access::new(rules, now);
    let ask = |peer: &str, forwarded: &str| {
        let headers = HeaderMap::from_iter([(client::X_FORWARDED_FOR, forwarded.parse().unwrap())]);
        let peer = Some(peer.parse().unwrap());
        access.admit(&Asked { method: &Method::POST, path: b"/", headers: &headers, peer }, now)
    };
    let _running = [ask("10.0.0.1", "1.1.1.1").unwrap(), ask("10.0.0.1", "2.2.2.2").unwrap()];
    assert!(ask("10.0.0.2", "6.6.6.6, 1.1.1.1").is_err());
    assert!(ask("::ffff:1.1.1.1", "3.3.3.3").is_err(), "the same client without the proxy");
    let _direct = ask("203.0.113.9", "3.3.3.3").unwrap();
    assert!(ask("203.0.113.9", "4.4.4.4").is_err(), "an untrusted peer cannot pretend to be several");
}

#[test]
fn a_key_that_stays_owes_what_it_owed_under_other_rules() {
    let now = Instant::now();
    let limits = KeyLimits { requests_per_minute: Some(3), tokens_per_minute: Some(100), max_concurrent: Some(1) };
    let old = access(vec![key("gone", limits), key("a", limits)], Some(1), now);
    let running = ask(&old, &Method::POST, CHAT, Some("a"), now).unwrap();

    let keys = Keys::new(vec![key("a", limits), key("new", limits)], Vec::new(), false);
    let new = old.successor(Rules { keys, max_concurrent_per_client: Some(1), ..Rules::default() }, now);
    let denied = |key: &str| ask(&new, &Method::POST, CHAT, Some(key), now).unwrap_err();
    assert_eq!(denied("new"), Denial::ClientConcurrency { limit: 1 }, "the client's request still runs");
    let keys = new.rules().keys.clone();
    let new = new.successor(Rules { keys, ..Rules::default() }, now);
    let denied = |key: &str| ask(&new, &Method::POST, CHAT, Some(key), now).unwrap_err();
    assert_eq!(denied("a"), Denial::KeyConcurrency { limit: 1 }, "and counts as the key's");
    assert_eq!(denied("gone"), Denial::WrongKey);
    assert_eq!(old.charge(&running, 100, now), Ok(()), "it goes on under the rules that it began with");
    drop(running);
    let second = ask(&new, &Method::POST, CHAT, Some("a"), now).unwrap();
    assert_eq!(new.charge(&second, 1, now).unwrap_err().denial, Denial::TokenRate { retry_after_seconds: 1 });
    drop(second);
    drop(ask(&new, &Method::POST, CHAT, Some("a"), now).unwrap());
    assert_eq!(denied("a"), Denial::RequestRate { retry_after_seconds: 20 });
    assert!(ask(&new, &Method::POST, CHAT, Some("new"), now).is_ok());
}
